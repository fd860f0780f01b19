#include "lsh/sampled_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

#include "lsh/chosen_rows.hpp"
#include "lsh/reweighed_rows.hpp"
#include "lsh/slope_samples.hpp"
#include "lsh/weight_units.hpp"

namespace kvtier::lsh {
namespace {

constexpr double largest_carry = 8.0;

double clipped_ratio(double above, double below) {
  return below > 0.0 ? std::min(2.0, std::max(.5, above / below)) : 1.0;
}

void add_scaled(std::vector<double>& to, double factor, const double* from) {
  for (std::size_t d = 0; d < to.size(); ++d) {
    to[d] += factor * from[d];
  }
}

/// Exact sums over a tile that was read, all heads.
struct read_tile_sums {
  std::vector<float> reference;    // [heads] of den and num
  std::vector<double> tops;        // [heads] the largest logit
  std::vector<double> den;         // [heads]
  std::vector<float> num;          // [heads][head_dim]
  std::vector<slope_sums> slopes;  // [heads], where the selection has rises
};

/// One head's way from sums over rows and tiles to what the host returns.
struct head_result {
  host_sums sums;
  double row_alpha = 1.0;   // what estimates of rows are multiplied by
  double tile_alpha = 1.0;  // of whole tiles
  value_slope slope{0};
  double rise = 0.0;  // what the slope counts times in num
  std::vector<double> num, correction, cross;
};

}  // namespace

struct sampled_attention::state {
  state(const selection& chosen, std::span<const tile_entry> tiles, const selector_query& query,
        element_type element, const row_kernels& kernels)
      : call{chosen, tiles, query, element, kernels},
        rows(call),
        tile_sums(chosen.tiles.size()),
        heads(query.heads) {}

  void read_tile(std::size_t i, const std::byte* const* tile_rows);
  void weigh_tile(std::size_t i, const std::byte* const* tile_rows);
  void fit_tile(std::size_t i, const std::byte* const* tile_rows);
  void require_all_read() const;
  std::vector<float> fitting_references() const;
  std::vector<host_sums> finish(cpu::task_arena* helpers);
  std::vector<host_sums> finish_in_units_of(std::span<const float> references,
                                            cpu::task_arena* helpers);
  void fit_slopes(cpu::task_arena* helpers);
  void sum(std::uint32_t head, const row_masses& masses);
  std::vector<float> centre() const;
  correction_terms correct_tiles(std::uint32_t head, const float* centre,
                                 std::vector<direction_term>& directions);
  void correct(std::uint32_t head, const row_corrections& from_rows, const float* centre);
  void account_for_unread_tiles(head_result& result, std::uint32_t head,
                                const correction_terms& of_rows, const correction_terms& of_tiles);

  std::size_t head_dim() const noexcept { return call.query.head_dim; }
  bool shrinks() const noexcept { return !call.weighted(); }

  const sampling_call call;
  chosen_rows rows;
  std::vector<read_tile_sums> tile_sums;
  std::vector<head_result> heads;
  // The same in other units, where its own do not do.
  std::optional<selection> in_other_units;
  std::unique_ptr<state> other;
};

void sampled_attention::state::read_tile(std::size_t i, const std::byte* const* tile_rows) {
  read_tile_sums& sums = tile_sums[i];
  sums.reference = call.chosen.reference;
  sums.tops.assign(call.query.heads, -std::numeric_limits<double>::infinity());
  weigh_tile(i, tile_rows);
  bool all_fit = true;
  for (std::uint32_t h = 0; h < call.query.heads; ++h) {
    if (!fits(sums.tops[h], double{sums.reference[h]}, largest_depth)) {
      sums.reference[h] = static_cast<float>(sums.tops[h]);
      all_fit = false;
    }
  }
  if (!all_fit) {
    weigh_tile(i, tile_rows);
  }
  if (call.chosen.rises) {
    fit_tile(i, tile_rows);
  }
}

void sampled_attention::state::weigh_tile(std::size_t i, const std::byte* const* tile_rows) {
  const selector_query& query = call.query;
  read_tile_sums& sums = tile_sums[i];
  sums.num.assign(query.heads * head_dim(), 0.0f);
  sums.den.assign(query.heads, 0.0);
  const std::size_t stride = padded_heads(query.heads);
  std::vector<float> weights(tile_tokens * stride);
  const weigh_pass pass{{tile_rows, tile_tokens, call.element, query.heads, query.head_dim},
                        query.values,
                        sums.reference.data(),
                        nullptr,
                        weights.data(),
                        sums.num.data()};
  const auto& weighting = call.chosen.weighting;
  if (weighting != nullptr) {
    weigh_by(call.kernels, pass, [&](std::size_t row, const float* logits, float* counts) {
      weighting->weigh_in_tile(i, static_cast<std::uint32_t>(row), logits, counts);
    });
  } else {
    call.kernels.weigh(pass);
  }
  for (std::uint32_t h = 0; h < query.heads; ++h) {
    for (std::size_t row = 0; row < tile_tokens; ++row) {
      sums.den[h] += double{weights[row * stride + h]};
    }
    if (weighting == nullptr) {
      sums.tops[h] =
          top_logit(pass.read, query.values, h, double{sums.reference[h]}, weights.data());
    }
  }
}

/// A tile's part of the slopes: its values lie together, so it is one unit of their noise.
void sampled_attention::state::fit_tile(std::size_t i, const std::byte* const* tile_rows) {
  const selection& chosen = call.chosen;
  const std::uint32_t count = call.query.heads;
  slope_samples samples(call.kernels, call.element, count, call.query.head_dim, tile_tokens);
  for (std::size_t row = 0; row < tile_tokens; ++row) {
    samples.add(tile_rows[row], call.mean_of(chosen.tiles[i]));
    for (std::uint32_t h = 0; h < count; ++h) {
      const std::size_t at = (i * count + h) * tile_tokens + row;
      samples.describe(h, double{chosen.token_weights[at]}, double{chosen.token_rises[at]});
    }
  }
  tile_sums[i].slopes = samples.sums_of_tile();
}

void sampled_attention::state::fit_slopes(cpu::task_arena* helpers) {
  if (!call.chosen.rises || call.complete()) {
    std::for_each(heads.begin(), heads.end(),
                  [this](head_result& result) { result.slope = value_slope(call.query.head_dim); });
    return;
  }
  std::vector<slope_sums> sums = rows.slopes(helpers);
  for (std::uint32_t head = 0; head < heads.size(); ++head) {
    for (const read_tile_sums& tile : tile_sums) {
      sums[head].add(tile.slopes[head]);
    }
    heads[head].slope = value_slope(sums[head]);
  }
}

void sampled_attention::state::require_all_read() const {
  if (!rows.weighed()) {
    throw std::logic_error("sampled attention: finish before read_rows");
  }
  for (std::size_t i = 0; i < tile_sums.size(); ++i) {
    if (tile_sums[i].den.empty()) {
      throw std::logic_error("sampled attention: finish before read_tile(" + std::to_string(i) +
                             ")");
    }
  }
}

/// N0, D0 and the factors of the estimates.
void sampled_attention::state::sum(std::uint32_t head, const row_masses& masses) {
  const selection& chosen = call.chosen;
  const std::size_t count = call.query.heads;
  head_result& result = heads[head];
  host_sums& sums = result.sums;
  sums.reference = chosen.reference[head];
  sums.estimates = chosen.estimates;
  sums.exact = call.exact();
  sums.den = masses.den;
  result.num = masses.num;
  double read_mass = 0.0;
  double estimated_mass = 0.0;
  for (std::size_t i = 0; i < tile_sums.size(); ++i) {
    const read_tile_sums& tile = tile_sums[i];
    const bool counts_once = chosen.estimates || chosen.weighting != nullptr;
    const double weight =
        counts_once ? 1.0 : certain / static_cast<double>(chosen.tile_thresholds[i]);
    sums.den += weight * tile.den[head];
    const float* num = tile.num.data() + head * head_dim();
    for (std::size_t d = 0; d < head_dim(); ++d) {
      result.num[d] += weight * double{num[d]};
    }
    read_mass += tile.den[head];
    estimated_mass += chosen.estimates ? double{chosen.tile_weights[i * count + head]} : 0.0;
  }
  if (!chosen.estimates) {
    return;
  }
  if (shrinks()) {
    result.row_alpha = clipped_ratio(masses.weighed, masses.estimated);
    result.tile_alpha = chosen.bits == 1 ? clipped_ratio(read_mass, estimated_mass) : 1.0;
  }
  sums.den += result.row_alpha * chosen.row_unread.mass[head] +
              result.tile_alpha * chosen.whole_unread.mass[head];
  add_scaled(result.num, result.row_alpha, chosen.row_unread.num.data() + head * head_dim());
  add_scaled(result.num, result.tile_alpha, chosen.whole_unread.num.data() + head * head_dim());
  if (!result.slope.zero()) {
    result.rise = result.row_alpha * chosen.row_unread.rise[head] +
                  result.tile_alpha * chosen.whole_unread.rise[head];
    for (std::size_t d = 0; d < head_dim(); ++d) {
      result.num[d] += result.rise * double{result.slope.values()[d]};
    }
  }
}

/// The host's own output, N0 / D0 [heads][head_dim]: what corrections are taken at.
std::vector<float> sampled_attention::state::centre() const {
  std::vector<float> all;
  for (const head_result& result : heads) {
    for (const double x : result.num) {
      all.push_back(result.sums.den > 0.0 ? static_cast<float>(x / result.sums.den) : 0.0f);
    }
  }
  return all;
}

/// Adds the tiles' parts of the vectors, and tiles that stand for others to `directions`; returns
/// their terms.
correction_terms sampled_attention::state::correct_tiles(std::uint32_t head, const float* centre,
                                                         std::vector<direction_term>& directions) {
  const selection& chosen = call.chosen;
  head_result& result = heads[head];
  const double alpha = result.tile_alpha;
  correction_terms terms;
  std::vector<double> z(head_dim());
  for (std::size_t i = 0; i < tile_sums.size(); ++i) {
    const unit_weights unit = weights_of(call.tile_threshold(i), chosen.estimator, true);
    const mean_value mean = call.mean_of(chosen.tiles[i]);
    const std::size_t at = i * call.query.heads + head;
    const double estimate = alpha * double{chosen.tile_weights[at]};
    const double rise = chosen.rises ? alpha * double{chosen.tile_rises[at]} : 0.0;
    const double excess = tile_sums[i].den[head] - estimate;
    const float* num = tile_sums[i].num.data() + head * head_dim();
    double size2 = 0.0;
    for (std::size_t d = 0; d < head_dim(); ++d) {
      const double mean_d = double{mean.unit} * mean.values[d];
      const double expected = estimate * mean_d + rise * double{result.slope.values()[d]};
      z[d] = double{num[d]} - expected - excess * double{centre[d]};
      size2 += z[d] * z[d];
    }
    add_scaled(result.correction, unit.correction, z.data());
    add_scaled(result.cross, unit.c * excess, z.data());
    terms.add(unit, excess, size2, alpha * alpha * double{chosen.tile_moments[at]});
    if (unit.c * size2 > 0.0 && directions.size() < 2 * most_direction_terms) {
      directions.push_back({unit.c * size2, {z.begin(), z.end()}});
    }
  }
  return terms;
}

void sampled_attention::state::correct(std::uint32_t head, const row_corrections& from_rows,
                                       const float* centre) {
  head_result& result = heads[head];
  result.correction = from_rows.correction;
  result.cross = from_rows.cross;
  std::vector<direction_term> directions = from_rows.heaviest;
  const correction_terms of_tiles = correct_tiles(head, centre, directions);
  correction_terms all = from_rows.terms;
  all.add(of_tiles);
  for (std::size_t d = 0; d < head_dim(); ++d) {
    result.correction[d] += all.den * double{centre[d]};  // so far it was that of o - centre
  }
  host_sums& sums = result.sums;
  sums.correction_den = all.den;
  sums.spread = all.spread;
  sums.spread2 = all.spread2;
  sums.share = all.share;
  sums.directions = directions_of(directions);
  sums.hidden = hidden_bias(sums.directions);
  if (shrinks()) {
    sums.frozen = all.frozen + result.rise * result.rise * result.slope.variance();
    sums.frozen_den = all.frozen_den;
  }
  account_for_unread_tiles(result, head, from_rows.terms, of_tiles);
}

/// Unread tiles are worth at least what the codes expect of them, times what reading showed to be
/// missing in that expectation.
void sampled_attention::state::account_for_unread_tiles(head_result& result, std::uint32_t head,
                                                        const correction_terms& of_rows,
                                                        const correction_terms& of_tiles) {
  const selection& chosen = call.chosen;
  host_sums& sums = result.sums;
  if (!shrinks()) {
    if (chosen.tiles.empty()) {
      sums.audited = !chosen.any_whole;
      return;
    }
    const double ratio = of_tiles.size / std::max(of_tiles.model, 1e-300);
    sums.frozen = std::max(0.0, ratio * chosen.audit_moments[head] - of_tiles.spread);
    return;
  }
  const double alpha = result.tile_alpha;
  const double unread = chosen.whole_moments[head] * alpha * alpha;
  if (unread <= 0.0) {
    return;
  }
  double ratio = 0.0;
  if (of_rows.frozen_model > 0.0) {
    ratio = of_rows.frozen / of_rows.frozen_model;
  }
  if (of_tiles.model > 0.0) {
    ratio = std::max(ratio, of_tiles.size / of_tiles.model);
  }
  sums.frozen += std::max(0.0, ratio * unread - of_tiles.frozen);
  if (!chosen.audits) {
    const double rows_mass = result.row_alpha * chosen.row_unread.mass[head];
    sums.audited = false;
    sums.carry = rows_mass > 0.0
                     ? std::min(largest_carry, alpha * chosen.whole_unread.mass[head] / rows_mass)
                     : 0.0;
  }
}

/// [heads]
std::vector<float> sampled_attention::state::fitting_references() const {
  const selection& chosen = call.chosen;
  std::vector<float> references = chosen.reference;
  for (std::uint32_t h = 0; h < references.size() && chosen.weighting == nullptr; ++h) {
    double top = rows.top_logit(h);
    for (const read_tile_sums& tile : tile_sums) {
      top = std::max(top, tile.tops[h]);
    }
    if (chosen.estimates) {
      const double unread = chosen.row_unread.mass[h] + chosen.whole_unread.mass[h];
      top = std::max(top, double{references[h]} + std::log(unread));
    }
    if (!fits(top, double{references[h]}, largest_distance)) {
      references[h] = static_cast<float>(top);
    }
  }
  return references;
}

std::vector<host_sums> sampled_attention::state::finish_in_units_of(
    std::span<const float> references, cpu::task_arena* helpers) {
  other.reset();
  in_other_units = in_units_of(call.chosen, references);
  other =
      std::make_unique<state>(*in_other_units, call.tiles, call.query, call.element, call.kernels);
  other->rows.weigh(rows.rows(), helpers);
  other->tile_sums = tile_sums;
  for (read_tile_sums& tile : other->tile_sums) {
    for (std::uint32_t h = 0; h < references.size(); ++h) {
      const double scale = std::exp(double{tile.reference[h]} - double{references[h]});
      tile.reference[h] = references[h];
      tile.den[h] *= scale;
      for (std::size_t d = h * head_dim(); d < (h + 1) * head_dim(); ++d) {
        tile.num[d] = static_cast<float>(scale * double{tile.num[d]});
      }
      if (call.chosen.rises) {
        tile.slopes[h].multiply_weights(
            scale_of_estimates(double{call.chosen.reference[h]}, double{references[h]}));
      }
    }
  }
  return other->finish(helpers);
}

std::vector<host_sums> sampled_attention::state::finish(cpu::task_arena* helpers) {
  heads.assign(heads.size(), {});
  fit_slopes(helpers);
  const std::vector<row_masses> masses = rows.masses();
  for (std::uint32_t head = 0; head < heads.size(); ++head) {
    sum(head, masses[head]);
  }
  if (call.chosen.estimates) {
    const std::vector<float> centres = centre();
    std::vector<row_estimate> estimates;
    for (const head_result& result : heads) {
      const std::span<const float> own(centres.data() + estimates.size() * head_dim(), head_dim());
      estimates.push_back({result.row_alpha, &result.slope, own});
    }
    const std::vector<row_corrections> of_rows = rows.correct(estimates, helpers);
    for (std::uint32_t head = 0; head < heads.size(); ++head) {
      correct(head, of_rows[head], centres.data() + head * head_dim());
    }
  }
  std::vector<host_sums> sums;
  for (head_result& result : heads) {
    sums.push_back(result.sums);
    sums.back().num = result.num;
    sums.back().correction = result.correction;
    sums.back().cross = result.cross;
  }
  return sums;
}

sampled_attention::sampled_attention(const selection& chosen, std::span<const tile_entry> tiles,
                                     const selector_query& query, element_type element,
                                     cpu::isa_level level)
    : state_(std::make_unique<state>(chosen, tiles, query, element, row_kernels_for(level))) {}

sampled_attention::~sampled_attention() = default;

void sampled_attention::read_tile(std::size_t i, const std::byte* const* rows) {
  state_->read_tile(i, rows);
}

void sampled_attention::read_rows(const std::byte* const* rows, cpu::task_arena* helpers) {
  state_->rows.weigh(rows, helpers);
}

std::vector<host_sums> sampled_attention::finish(cpu::task_arena* helpers) {
  state_->require_all_read();
  const std::vector<float> references = state_->fitting_references();
  const auto in_them = [&](const read_tile_sums& tile) { return tile.reference == references; };
  if (references == state_->call.chosen.reference &&
      std::all_of(state_->tile_sums.begin(), state_->tile_sums.end(), in_them)) {
    return state_->finish(helpers);
  }
  return state_->finish_in_units_of(references, helpers);
}

}  // namespace kvtier::lsh
