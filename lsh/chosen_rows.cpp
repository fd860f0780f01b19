#include "lsh/chosen_rows.hpp"

#include <algorithm>

#include "lsh/reweighed_rows.hpp"
#include "lsh/shared_work.hpp"
#include "lsh/slope_samples.hpp"
#include "lsh/weight_units.hpp"

namespace kvtier::lsh {
namespace {

void add_to(std::vector<double>& sums, const std::vector<float>& more, std::size_t head) {
  const float* from = more.data() + head * sums.size();
  for (std::size_t d = 0; d < sums.size(); ++d) {
    sums[d] += double{from[d]};
  }
}

}  // namespace

/// The rows of a chunk that stand for others, in the order and form of residual_pass.
struct chosen_rows::drawn_rows {
  std::vector<std::size_t> at;  // in the list of all rows
  std::vector<const std::byte*> rows;
  std::vector<float> weights, estimates, rises, t, c, sizes;
  std::vector<mean_value> means;

  void reserve(std::size_t count, std::size_t stride) {
    at.reserve(count);
    rows.reserve(count);
    t.reserve(count);
    c.reserve(count);
    means.reserve(count);
    weights.reserve(count * stride);
    estimates.reserve(count * stride);
    rises.reserve(count * stride);
  }
};

bool sampling_call::exact() const noexcept {
  const auto stands_for_itself = [](std::uint32_t threshold) { return threshold == certain; };
  return complete() && chosen.weighting == nullptr &&
         (!weighted() ||
          (std::all_of(chosen.thresholds.begin(), chosen.thresholds.end(), stands_for_itself) &&
           std::all_of(chosen.tile_thresholds.begin(), chosen.tile_thresholds.end(),
                       stands_for_itself)));
}

std::size_t chosen_rows::end_of(std::size_t chunk) const noexcept {
  return std::min(rows_.size(), (chunk + 1) * chunk_rows);
}

row_pass chosen_rows::pass_over(const std::byte* const* rows, std::size_t count) const noexcept {
  return {rows, static_cast<std::uint32_t>(count), call_.element, heads(), call_.query.head_dim};
}

void chosen_rows::weigh(const std::byte* const* rows, cpu::task_arena* helpers) {
  rows_.assign(rows, rows + call_.chosen.rows.size());
  weights_.resize(rows_.size() * padded_heads(heads()));
  masses_.assign(chunks(), {});
  share_work(chunks(), helpers, [this](std::size_t chunk) { weigh_chunk(chunk); });
}

/// The second pass needs them; memory delivers them during the first.
void chosen_rows::prefetch_means(std::size_t first, std::size_t last) const noexcept {
  constexpr std::size_t line = 64;
  const sketch_format format{call_.query.head_dim, call_.chosen.bits};
  for (std::size_t i = first; i < last; ++i) {
    const std::byte* const index = call_.tiles[call_.chosen.rows[i] / tile_tokens].index;
    for (std::size_t at = format.value_at(); at < format.bytes(); at += line) {
      __builtin_prefetch(index + at, 0, 2);
    }
  }
}

void chosen_rows::weigh_chunk(std::size_t chunk) {
  const selection& chosen = call_.chosen;
  const std::size_t first = chunk * chunk_rows;
  const std::size_t count = end_of(chunk) - first;
  const std::size_t stride = padded_heads(heads());
  mass_chunk& sums = masses_[chunk];
  sums.heads.resize(heads());
  sums.num.assign(std::size_t{heads()} * call_.query.head_dim, 0.0f);
  std::vector<float> factors(count, 1.0f);
  if (call_.weighted() && chosen.weighting == nullptr) {
    for (std::size_t i = 0; i < count; ++i) {
      factors[i] = static_cast<float>(certain) / static_cast<float>(chosen.thresholds[first + i]);
    }
  }
  if (!call_.weighted()) {
    prefetch_means(first, first + count);
  }
  weigh_pass pass{pass_over(rows_.data() + first, count),
                  call_.query.values,
                  chosen.reference.data(),
                  factors.data(),
                  weights_.data() + first * stride,
                  sums.num.data()};
  if (chosen.weighting == nullptr) {
    call_.kernels.weigh(pass);
  } else {
    pass.factors = nullptr;
    weigh_by(call_.kernels, pass, [&](std::size_t i, const float* logits, float* counts) {
      chosen.weighting->weigh_row(first + i, logits, counts);
    });
  }
  for (std::size_t i = 0; i < count; ++i) {
    const double t = weights_of(call_.row_threshold(first + i), chosen.estimator, true).t;
    const float* weights = weights_.data() + (first + i) * stride;
    for (std::uint32_t h = 0; h < heads(); ++h) {
      sums.heads[h].den += double{factors[i]} * double{weights[h]};
      sums.heads[h].weighed += t * double{weights[h]};
    }
    if (chosen.estimates && t > 0.0) {
      const float* estimates = chosen.row_weights.data() + (first + i) * heads();
      for (std::uint32_t h = 0; h < heads(); ++h) {
        sums.heads[h].estimated += t * double{estimates[h]};
      }
    }
  }
}

double chosen_rows::top_logit(std::uint32_t head) const {
  return lsh::top_logit(pass_over(rows_.data(), rows_.size()), call_.query.values, head,
                        double{call_.chosen.reference[head]}, weights_.data());
}

std::vector<row_masses> chosen_rows::masses() const {
  std::vector<row_masses> all(heads());
  for (std::uint32_t h = 0; h < heads(); ++h) {
    all[h].num.assign(call_.query.head_dim, 0.0);
    for (const mass_chunk& chunk : masses_) {
      all[h].den += chunk.heads[h].den;
      all[h].weighed += chunk.heads[h].weighed;
      all[h].estimated += chunk.heads[h].estimated;
      add_to(all[h].num, chunk.num, h);
    }
  }
  return all;
}

std::vector<slope_sums> chosen_rows::slopes(cpu::task_arena* helpers) const {
  std::vector<std::vector<slope_sums>> sums(chunks());
  share_work(chunks(), helpers, [&](std::size_t chunk) { slope_chunk(chunk, sums[chunk]); });
  const slope_fit none{0.0, 0.0, std::vector<double>(call_.query.head_dim)};
  std::vector<slope_sums> all(heads(), {none, none});
  for (std::uint32_t h = 0; h < heads(); ++h) {
    for (const std::vector<slope_sums>& chunk : sums) {
      all[h].add(chunk[h]);
    }
  }
  return all;
}

void chosen_rows::slope_chunk(std::size_t chunk, std::vector<slope_sums>& sums) const {
  const selection& chosen = call_.chosen;
  const std::size_t first = chunk * chunk_rows;
  slope_samples samples(call_.kernels, call_.element, heads(), call_.query.head_dim,
                        end_of(chunk) - first);
  for (std::size_t i = first; i < end_of(chunk); ++i) {
    const double t = weights_of(call_.row_threshold(i), chosen.estimator, true).t;
    if (t == 0.0) {
      continue;
    }
    samples.add(rows_[i], call_.mean_of(chosen.rows[i] / tile_tokens));
    for (std::uint32_t h = 0; h < heads(); ++h) {
      const std::size_t at = i * heads() + h;
      samples.describe(h, t * double{chosen.row_weights[at]}, double{chosen.row_rises[at]});
    }
  }
  sums = samples.sums_of_rows();
}

std::vector<row_corrections> chosen_rows::correct(std::span<const row_estimate> estimates,
                                                  cpu::task_arena* helpers) const {
  std::vector<correction_chunk> sums(chunks());
  share_work(chunks(), helpers,
             [&](std::size_t chunk) { correct_chunk(chunk, estimates, sums[chunk]); });
  std::vector<row_corrections> all(heads());
  for (std::uint32_t h = 0; h < heads(); ++h) {
    all[h].correction.assign(call_.query.head_dim, 0.0);
    all[h].cross.assign(call_.query.head_dim, 0.0);
    for (const correction_chunk& chunk : sums) {
      all[h].terms.add(chunk.heads[h]);
      add_to(all[h].correction, chunk.correction, h);
      add_to(all[h].cross, chunk.cross, h);
    }
    heaviest_terms heaviest;
    for (const correction_chunk& chunk : sums) {
      for (const term_place& place : chunk.heaviest[h].terms()) {
        heaviest.offer(place);
      }
    }
    for (const term_place& place : heaviest.terms()) {
      all[h].heaviest.push_back(term_at(place, h, estimates[h]));
    }
  }
  return all;
}

/// alpha W~ of row `i`.
double chosen_rows::estimate_of(std::size_t i, std::uint32_t head,
                                const row_estimate& estimate) const {
  return estimate.alpha * double{call_.chosen.row_weights[i * heads() + head]};
}

/// z of one row, again.
direction_term chosen_rows::term_at(const term_place& place, std::uint32_t head,
                                    const row_estimate& estimate) const {
  const std::uint32_t dim = call_.query.head_dim;
  const std::size_t i = place.place;
  const float weight = weights_[i * padded_heads(heads()) + head];
  direction_term made{place.variance, std::vector<float>(dim)};
  to_float(call_.element, rows_[i] + dim * element_bytes(call_.element), made.z.data(), dim);
  for (std::uint32_t d = 0; d < dim; ++d) {
    made.z[d] = weight * (made.z[d] - estimate.centre[d]);
  }
  if (call_.weighted()) {
    return made;
  }
  const auto expected = static_cast<float>(estimate_of(i, head, estimate));
  const mean_value mean = call_.mean_of(call_.chosen.rows[i] / tile_tokens);
  const float x = call_.chosen.rises ? call_.chosen.row_rises[i * heads() + head] : 0.0f;
  for (std::uint32_t d = 0; d < dim; ++d) {
    const float value =
        mean.unit * static_cast<float>(mean.values[d]) + x * estimate.slope->values()[d];
    made.z[d] -= expected * (value - estimate.centre[d]);
  }
  return made;
}

chosen_rows::drawn_rows chosen_rows::drawn_of(std::size_t chunk,
                                              std::span<const row_estimate> estimates,
                                              bool rises) const {
  const selection& chosen = call_.chosen;
  const bool weighted = call_.weighted();
  const std::size_t stride = padded_heads(heads());
  drawn_rows drawn;
  drawn.reserve(end_of(chunk) - chunk * chunk_rows, stride);
  for (std::size_t i = chunk * chunk_rows; i < end_of(chunk); ++i) {
    if (call_.row_threshold(i) == certain) {
      continue;  // stands for itself only
    }
    const unit_weights unit = weights_of(chosen.thresholds[i], chosen.estimator, !weighted);
    drawn.at.push_back(i);
    drawn.rows.push_back(rows_[i]);
    drawn.t.push_back(static_cast<float>(unit.t));
    drawn.c.push_back(static_cast<float>(unit.c));
    drawn.weights.insert(drawn.weights.end(), weights_.data() + i * stride,
                         weights_.data() + (i + 1) * stride);
    if (weighted) {
      continue;
    }
    drawn.means.push_back(call_.mean_of(chosen.rows[i] / tile_tokens));
    for (std::uint32_t h = 0; h < stride; ++h) {
      const double estimate = h < heads() ? estimate_of(i, h, estimates[h]) : 0.0;
      const double x = rises && h < heads() ? double{chosen.row_rises[i * heads() + h]} : 0.0;
      drawn.estimates.push_back(static_cast<float>(estimate));
      drawn.rises.push_back(static_cast<float>(estimate * x));
    }
  }
  drawn.sizes.resize(drawn.weights.size());
  return drawn;
}

void chosen_rows::correct_chunk(std::size_t chunk, std::span<const row_estimate> estimates,
                                correction_chunk& sums) const {
  std::vector<float> centre, slopes;
  bool rises = false;
  for (const row_estimate& estimate : estimates) {
    centre.insert(centre.end(), estimate.centre.begin(), estimate.centre.end());
    const auto slope = estimate.slope->values();
    slopes.insert(slopes.end(), slope.begin(), slope.end());
    rises = rises || !estimate.slope->zero();
  }
  sums.correction.assign(centre.size(), 0.0f);
  sums.cross.assign(centre.size(), 0.0f);
  drawn_rows drawn = drawn_of(chunk, estimates, rises);
  residual_pass pass{.read = pass_over(drawn.rows.data(), drawn.rows.size()),
                     .weights = drawn.weights.data(),
                     .c = drawn.c.data(),
                     .centre = centre.data(),
                     .sizes = drawn.sizes.data(),
                     .cross = sums.cross.data()};
  if (!call_.weighted()) {
    pass.estimates = drawn.estimates.data();
    pass.means = drawn.means.data();
    pass.t = drawn.t.data();
    pass.correction = sums.correction.data();
    pass.rises = rises ? drawn.rises.data() : nullptr;
    pass.slopes = slopes.data();
  }
  call_.kernels.residuals(pass);
  add_terms(drawn, estimates, sums);
}

void chosen_rows::add_terms(const drawn_rows& drawn, std::span<const row_estimate> estimates,
                            correction_chunk& sums) const {
  const selection& chosen = call_.chosen;
  const bool weighted = call_.weighted();
  const std::size_t stride = padded_heads(heads());
  sums.heads.resize(heads());
  sums.heaviest.resize(heads());
  for (std::size_t i = 0; i < drawn.at.size(); ++i) {
    const unit_weights unit =
        weights_of(chosen.thresholds[drawn.at[i]], chosen.estimator, !weighted);
    for (std::uint32_t h = 0; h < heads(); ++h) {
      const std::size_t at = i * stride + h;
      const float estimate = weighted ? 0.0f : drawn.estimates[at];
      const double alpha = estimates[h].alpha;
      const double moment =
          chosen.row_moments.empty()
              ? 0.0
              : alpha * alpha * double{chosen.row_moments[drawn.at[i] * heads() + h]};
      sums.heads[h].add(unit, double{drawn.weights[at]} - double{estimate}, double{drawn.sizes[at]},
                        moment);
      sums.heaviest[h].offer({unit.c * double{drawn.sizes[at]}, drawn.at[i]});
    }
  }
}

}  // namespace kvtier::lsh
