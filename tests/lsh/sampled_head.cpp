#include "tests/lsh/sampled_head.hpp"

#include <cmath>

#include "lsh/sketch_format.hpp"

namespace kvtier::test {

sampled_head::sampled_head(synthetic_head data, std::uint32_t bits, std::uint32_t whole_tiles)
    : data_(std::move(data)) {
  const std::size_t dim = data_.head_dim;
  const std::size_t tokens = data_.keys.size() / dim;
  rows_.resize(tokens * 4 * dim);
  for (std::size_t token = 0; token < tokens; ++token) {
    std::byte* const at = rows_.data() + token * 4 * dim;
    from_float(element_type::bf16, data_.keys.data() + token * dim, at, dim);
    from_float(element_type::bf16, data_.values.data() + token * dim, at + 2 * dim, dim);
  }
  selector_config options;
  options.kind = selector_kind::sketch;
  options.bits = bits;
  const auto selector = lsh::make_token_selector(options, data_.head_dim, 0);
  tiles_.resize(tokens / lsh::tile_tokens);
  indexes_.resize(tiles_.size() * selector->index_bytes(0, 0) + 64);
  const auto address = reinterpret_cast<std::uintptr_t>(indexes_.data());
  std::byte* const indexes = indexes_.data() + (64 - address % 64) % 64;
  for (std::size_t b = 0; b < tiles_.size(); ++b) {
    std::byte* const at = indexes + b * selector->index_bytes(0, 0);
    const std::size_t first = b * lsh::tile_tokens * dim;
    selector->index_tile({.keys = data_.keys.data() + first, .values = data_.values.data() + first},
                         at);
    tiles_[b] = {at, b, 1, b < whole_tiles};
  }
  for (std::uint32_t head = 0; head < synthetic_head::heads; ++head) {
    window_.push_back(attend_window(data_, head));
    exact_.push_back(attend_all(data_, head));
    window_mass_.push_back(static_cast<std::int16_t>(std::rint(64.0 * window_.back().lse)));
  }
}

const std::byte* sampled_head::row(std::size_t token) const {
  return rows_.data() + token * 4 * data_.head_dim;
}

head_sample sampled_head::sample(const selector_config& options, std::uint64_t seed) const {
  const auto selector = lsh::make_token_selector(options, data_.head_dim, seed);
  const lsh::selector_query query{data_.queries.data(),
                                  synthetic_head::heads,
                                  data_.head_dim,
                                  window_mass_.data(),
                                  tokens() + 68,
                                  0,
                                  0};
  const lsh::selection chosen = selector->begin(tiles_, query)->choose(nullptr);
  lsh::sampled_attention attention(chosen, tiles_, query, element_type::bf16);
  std::vector<const std::byte*> pointers;
  for (const std::uint32_t token : chosen.rows) {
    pointers.push_back(row(token));
  }
  attention.read_rows(pointers.data(), nullptr);
  for (std::size_t i = 0; i < chosen.tiles.size(); ++i) {
    std::vector<const std::byte*> tile_pointers;
    for (std::uint32_t t = 0; t < lsh::tile_tokens; ++t) {
      tile_pointers.push_back(row(std::size_t{chosen.tiles[i]} * lsh::tile_tokens + t));
    }
    attention.read_tile(i, tile_pointers.data());
  }
  head_sample made;
  made.rows_read = chosen.rows.size() + chosen.tiles.size() * lsh::tile_tokens;
  std::size_t head = 0;
  for (const lsh::host_sums& from : attention.finish(nullptr)) {
    estimate_sums sums;
    sums.reference = from.reference;
    sums.D0 = from.den;
    sums.Cd = from.correction_den;
    sums.SX = from.spread;
    sums.SX2 = from.spread2;
    sums.SE = from.share;
    sums.QX = from.frozen;
    sums.QE = from.frozen_den;
    sums.kx = from.carry;
    sums.N0.assign(from.num.begin(), from.num.end());
    sums.C.assign(from.correction.begin(), from.correction.end());
    sums.A.assign(from.cross.begin(), from.cross.end());
    made.sums.push_back(sums);
    made.certifiable.push_back(from.audited && chosen.coarse[head++] == 0);
  }
  return made;
}

double sampled_head::exact_den(std::uint32_t head, double reference) const {
  return std::exp(exact_[head].lse - reference) - std::exp(window_[head].lse - reference);
}

std::vector<double> sampled_head::exact_num(std::uint32_t head, double reference) const {
  std::vector<double> num;
  for (std::size_t d = 0; d < data_.head_dim; ++d) {
    num.push_back(std::exp(exact_[head].lse - reference) * exact_[head].o[d] -
                  std::exp(window_[head].lse - reference) * window_[head].o[d]);
  }
  return num;
}

double relative_error(const std::vector<double>& estimate, const std::vector<double>& exact) {
  double error2 = 0.0;
  double size2 = 0.0;
  for (std::size_t d = 0; d < exact.size(); ++d) {
    error2 += (estimate[d] - exact[d]) * (estimate[d] - exact[d]);
    size2 += exact[d] * exact[d];
  }
  return std::sqrt(error2 / size2);
}

}  // namespace kvtier::test
