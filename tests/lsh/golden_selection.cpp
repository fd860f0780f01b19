#include "tests/lsh/golden_selection.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lsh/sketch_format.hpp"

namespace kvtier::test {
namespace {

namespace golden = lsh::golden;

std::uint32_t mix32(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x85EBCA6Bu;
  x ^= x >> 13;
  x *= 0xC2B2AE35u;
  return x ^ (x >> 16);
}

/// 3 rounds of random signs and a Walsh-Hadamard transform, by the definition.
std::vector<float> rotated(std::vector<float> x, std::uint32_t seed) {
  const auto dim = static_cast<std::uint32_t>(x.size());
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (std::uint32_t d = 0; d < dim; ++d) {
      x[d] *= (mix32((round * dim + d) * 0x9E3779B1u + seed) & 1u) != 0 ? 1.0f : -1.0f;
    }
    for (std::uint32_t half = 1; half < dim; half *= 2) {
      for (std::uint32_t d = 0; d < dim; ++d) {
        if ((d & half) == 0) {
          const float a = x[d];
          const float b = x[d + half];
          x[d] = a + b;
          x[d + half] = a - b;
        }
      }
    }
  }
  for (float& v : x) {
    v *= std::ldexp(1.0f, dim == 64 ? -9 : dim == 128 ? -10 : -12);
  }
  return x;
}

/// 2 a u, which times f^2 is the variance of a logit given its code.
double variance_unit(const golden::context_set& set, std::uint32_t bits, std::uint32_t head) {
  const std::vector<float> q = golden::widened(set.Q);
  const auto from = q.begin() + std::ptrdiff_t{head} * set.D;
  const std::vector<float> x = rotated({from, from + set.D}, golden::vectors().rotation_seed);
  float top = 0.0f;
  for (const float v : x) {
    top = std::max(top, std::fabs(v));
  }
  std::int64_t norm = 0;
  for (const float v : x) {
    const auto level = static_cast<std::int64_t>(std::rint(v * (31.0f / top)));
    norm += level * level;
  }
  const float step = top / 31.0f;
  const float a = step * golden::vectors().a_q.at(set.D);
  const float u = golden::vectors().u_q.at(bits).at(set.D) * (static_cast<float>(norm) * step);
  return 2.0 * double{a} * double{u};
}

/// What a head thinks of one token.
struct opinion {
  double weight;  // W~, in units of exp(reference)
  double moment;  // E[w^2 | code]
};

}  // namespace

golden_selection::golden_selection(const golden::context_set& set, const golden::sample_case& from)
    : rows{golden::widened(set.K), golden::widened(set.V)}, queries_(golden::widened(set.Q)) {
  query = {queries_.data(), set.G, set.D, set.win64.data(), from.step, set.layer, set.kv_head};
  chosen.bits = from.bits;
  place_indexes(set);
  for (const std::uint32_t position : from.whole) {
    tiles[position].whole = true;
  }
  choose(set, from);
  estimate(set, from);
}

void golden_selection::place_indexes(const golden::context_set& set) {
  const lsh::sketch_format format{set.D, chosen.bits};
  const golden::index_vectors& index = set.index_of(chosen.bits);
  indexes_.assign(set.nb * format.bytes(), std::byte{0xff});
  tiles.resize(set.nb);
  for (std::uint32_t b = 0; b < set.nb; ++b) {
    std::byte* at = indexes_.data() + b * format.bytes();
    std::memcpy(at + format.value_at(), index.vb8.data() + std::size_t{b} * set.D, set.D);
    const lsh::sketch_format::tail tail{index.em[b], index.fs[b], index.vs[b]};
    std::memcpy(at + format.tail_at(), &tail, sizeof tail);
    tiles[b].index = at;
    tiles[b].number = set.tile[b];
    tiles[b].sequence = set.seq[b];
  }
}

void golden_selection::choose(const golden::context_set& set, const golden::sample_case& from) {
  chosen.heads = set.G;
  chosen.estimates = true;
  chosen.estimator = from.mode == "ht" ? estimator_kind::ht : estimator_kind::shrink;
  chosen.rows = from.ids;
  chosen.thresholds = from.thr_rows;
  chosen.tiles = from.tiles;
  for (const std::uint32_t position : from.tiles) {
    chosen.tile_thresholds.push_back(from.tile_thr[position]);
  }
  chosen.any_whole = !from.whole.empty();
  chosen.audits = std::any_of(from.tile_thr.begin(), from.tile_thr.end(),
                              [](std::uint32_t t) { return t > 0 && t < lsh::certain; });
}

void golden_selection::estimate(const golden::context_set& set, const golden::sample_case& from) {
  const golden::index_vectors& index = set.index_of(chosen.bits);
  const std::size_t tokens = std::size_t{set.nb} * lsh::tile_tokens;
  const bool ht = chosen.estimator == estimator_kind::ht;
  chosen.row_weights.resize(chosen.rows.size() * set.G);
  chosen.row_moments.resize(chosen.any_whole ? chosen.rows.size() * set.G : 0);
  chosen.tile_weights.resize(chosen.tiles.size() * set.G);
  chosen.tile_moments.resize(chosen.tiles.size() * set.G);
  chosen.whole_moments.assign(set.G, 0.0);
  chosen.audit_moments.assign(set.G, 0.0);
  for (lsh::unread_estimate* unread : {&chosen.row_unread, &chosen.whole_unread}) {
    unread->mass.assign(set.G, 0.0);
    unread->num.assign(std::size_t{set.G} * set.D, 0.0);
  }
  for (std::uint32_t g = 0; g < set.G; ++g) {
    chosen.reference.push_back(static_cast<float>(from.smax[g]) / 64.0f);
    const double unit = variance_unit(set, chosen.bits, g);
    std::vector<opinion> all;
    for (std::size_t token = 0; token < tokens; ++token) {
      const double f = double{static_cast<float>(index.f8[token]) * index.fs[token / 64]};
      const double tau2 = unit * f * f;
      const double weight = std::exp(index.s16[g * tokens + token] / 64.0 -
                                     std::max(tau2 / 2 - 1.0, 0.0) - from.smax[g] / 64.0);
      all.push_back({weight, weight * weight * std::exp(std::min(tau2, 1.5))});
    }
    std::vector<bool> read(tokens, false);
    for (std::size_t i = 0; i < chosen.rows.size(); ++i) {
      read[chosen.rows[i]] = true;
      chosen.row_weights[i * set.G + g] = static_cast<float>(all[chosen.rows[i]].weight);
      if (chosen.any_whole) {
        chosen.row_moments[i * set.G + g] = static_cast<float>(all[chosen.rows[i]].moment);
      }
    }
    for (std::uint32_t b = 0; b < set.nb; ++b) {
      double mass = 0, unread = 0, moment = 0;
      for (std::size_t token = std::size_t{b} * 64; token < std::size_t{b} * 64 + 64; ++token) {
        mass += all[token].weight;
        moment += all[token].moment;
        unread += read[token] ? 0.0 : all[token].weight;
      }
      const double share = from.tile_thr[b] / 65536.0;
      if (share > 0 && share < 1) {
        chosen.audit_moments[g] += ht ? (1 - share) / share * moment : 0.0;
      }
      const auto place = std::find(chosen.tiles.begin(), chosen.tiles.end(), b);
      if (place != chosen.tiles.end()) {
        const auto i = static_cast<std::size_t>(place - chosen.tiles.begin());
        chosen.tile_weights[i * set.G + g] = static_cast<float>(mass);
        chosen.tile_moments[i * set.G + g] = static_cast<float>(moment);
        continue;
      }
      if (!tiles[b].whole && ht) {
        continue;
      }
      lsh::unread_estimate& to = tiles[b].whole ? chosen.whole_unread : chosen.row_unread;
      to.mass[g] += unread;
      for (std::size_t d = 0; d < set.D; ++d) {
        to.num[g * set.D + d] +=
            unread * double{index.vs[b]} * index.vb8[std::size_t{b} * set.D + d];
      }
      chosen.whole_moments[g] += tiles[b].whole ? moment : 0.0;
    }
  }
}

}  // namespace kvtier::test
