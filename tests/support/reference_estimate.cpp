#include "tests/support/reference_estimate.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "lsh/sketch_format.hpp"

namespace kvtier::test {
namespace {

using vector = std::vector<double>;

/// A row, or a tile that was read as a whole.
struct unit {
  vector y;
  double e, t, p;
  double moment;  // E[w^2 | code]
  double size2 = 0.0;
};

double squared(const vector& x) {
  double sum = 0.0;
  for (const double v : x) {
    sum += v * v;
  }
  return sum;
}

void add(vector& to, double factor, const vector& x) {
  for (std::size_t d = 0; d < to.size(); ++d) {
    to[d] += factor * x[d];
  }
}

double clip_ratio(double num, double den) {
  return den > 0 ? std::min(2.0, std::max(.5, num / den)) : 1.0;
}

class head_reference {
 public:
  head_reference(const lsh::selection& chosen, std::span<const lsh::tile_entry> tiles,
                 const lsh::selector_query& query, const tile_rows& rows, std::uint32_t head)
      : chosen_(chosen), tiles_(tiles), query_(query), rows_(rows), head_(head) {}

  reference_sums sums() {
    result_.sums.reference = chosen_.reference[head_];
    weigh();
    slope_.assign(query_.head_dim, 0.0);
    if (chosen_.rises) {
      fit_slope();
    }
    sum_first_pass();
    if (chosen_.estimates) {
      sum_second_pass();
    }
    return result_;
  }

 private:
  bool ht() const { return chosen_.estimator == estimator_kind::ht; }
  std::size_t at(std::size_t i) const { return i * query_.heads + head_; }

  double weight(std::size_t token) const {
    double dot = 0.0;
    for (std::size_t d = 0; d < query_.head_dim; ++d) {
      dot += double{query_.values[head_ * query_.head_dim + d]} *
             double{rows_.keys[token * query_.head_dim + d]};
    }
    return std::exp(dot / std::sqrt(static_cast<double>(query_.head_dim)) - result_.sums.reference);
  }

  vector value(std::size_t token) const {
    const auto from = rows_.values.begin() + static_cast<std::ptrdiff_t>(token * query_.head_dim);
    return {from, from + query_.head_dim};
  }

  vector mean(std::size_t position) const {
    const lsh::sketch_view view({query_.head_dim, chosen_.bits}, tiles_[position].index);
    vector made;
    for (std::size_t d = 0; d < query_.head_dim; ++d) {
      made.push_back(double{view.value_unit()} * view.value()[d]);
    }
    return made;
  }

  void weigh() {
    double wt = 0, st = 0, db = 0, wb = 0;
    for (std::size_t i = 0; i < chosen_.rows.size(); ++i) {
      const double pi = chosen_.thresholds[i] / 65536.0;
      row_weights_.push_back(weight(chosen_.rows[i]));
      wt += row_weights_.back() * (1 - pi) / pi;
      st += chosen_.estimates ? double{chosen_.row_weights[at(i)]} * (1 - pi) / pi : 0.0;
    }
    for (std::size_t i = 0; i < chosen_.tiles.size(); ++i) {
      double mass = 0;
      vector num(query_.head_dim, 0.0);
      for (std::size_t r = 0; r < lsh::tile_tokens; ++r) {
        const std::size_t token = std::size_t{chosen_.tiles[i]} * lsh::tile_tokens + r;
        mass += weight(token);
        add(num, weight(token), value(token));
      }
      tile_masses_.push_back(mass);
      tile_nums_.push_back(num);
      db += mass;
      wb += chosen_.estimates ? double{chosen_.tile_weights[at(i)]} : 0.0;
    }
    if (chosen_.estimates && !ht()) {
      row_alpha_ = clip_ratio(wt, st);
      tile_alpha_ = chosen_.bits == 2 ? 1.0 : clip_ratio(db, wb);
    }
  }

  /// What lsh/value_slope.hpp fits to: sums of f (v - m) of every unit by itself, and of f x.
  struct slope_units {
    std::vector<vector> sums;
    double rise2 = 0.0;

    vector slope() const {
      vector b(sums.front().size(), 0.0);
      for (const vector& unit : sums) {
        add(b, 1 / rise2, unit);
      }
      return b;
    }
  };

  /// `weighted` or plain.
  slope_units units_of_slope(bool weighted) const {
    slope_units units;
    for (std::size_t i = 0; i < chosen_.rows.size(); ++i) {
      const double pi = chosen_.thresholds[i] / 65536.0;
      const double x = chosen_.row_rises[at(i)];
      const double mass = (1 - pi) / pi * double{chosen_.row_weights[at(i)]};
      const double f = weighted ? mass * x : pi < 1 ? x : 0.0;
      vector sum(query_.head_dim, 0.0);
      add(sum, f, value(chosen_.rows[i]));
      add(sum, -f, mean(chosen_.rows[i] / lsh::tile_tokens));
      units.sums.push_back(sum);
      units.rise2 += f * x;
    }
    for (std::size_t i = 0; i < chosen_.tiles.size(); ++i) {
      vector sum(query_.head_dim, 0.0);
      for (std::size_t r = 0; r < lsh::tile_tokens; ++r) {
        const double x = chosen_.token_rises[at(i) * lsh::tile_tokens + r];
        const double mass = chosen_.token_weights[at(i) * lsh::tile_tokens + r];
        const double f = weighted ? mass * x : x;
        add(sum, f, value(std::size_t{chosen_.tiles[i]} * lsh::tile_tokens + r));
        add(sum, -f, mean(chosen_.tiles[i]));
        units.rise2 += f * x;
      }
      units.sums.push_back(sum);
    }
    return units;
  }

  /// Adds what is left of `towards` by its noise.
  void step_of_slope(const vector& towards, double noise) {
    const double kept = std::max(0.0, 1 - noise / squared(towards));
    add(slope_, kept, towards);
    slope_variance_ += kept * noise;
  }

  void fit_slope() {
    const slope_units plain = units_of_slope(false);
    const slope_units weighted = units_of_slope(true);
    if (plain.rise2 <= 0 || weighted.rise2 <= 0) {
      return;
    }
    double plain_noise = 0, bend_noise = 0;
    for (std::size_t i = 0; i < plain.sums.size(); ++i) {
      vector bend(query_.head_dim, 0.0);
      add(bend, 1 / weighted.rise2, weighted.sums[i]);
      add(bend, -1 / plain.rise2, plain.sums[i]);
      plain_noise += squared(plain.sums[i]) / (plain.rise2 * plain.rise2);
      bend_noise += squared(bend);
    }
    vector bend = weighted.slope();
    add(bend, -1, plain.slope());
    step_of_slope(plain.slope(), plain_noise);
    step_of_slope(bend, bend_noise);
    if (slope_variance_ > 0) {
      rise_ = row_alpha_ * chosen_.row_unread.rise[head_] +
              tile_alpha_ * chosen_.whole_unread.rise[head_];
    }
  }

  void sum_first_pass() {
    estimate_sums& s = result_.sums;
    s.N0.assign(query_.head_dim, 0.0);
    for (std::size_t i = 0; i < chosen_.rows.size(); ++i) {
      const double pi = chosen_.thresholds[i] / 65536.0;
      const double r = !chosen_.estimates || ht() ? row_weights_[i] / pi : row_weights_[i];
      s.D0 += r;
      add(s.N0, r, value(chosen_.rows[i]));
    }
    for (std::size_t i = 0; i < chosen_.tiles.size(); ++i) {
      const double r = chosen_.estimates ? 1.0 : 65536.0 / chosen_.tile_thresholds[i];
      s.D0 += r * tile_masses_[i];
      add(s.N0, r, tile_nums_[i]);
    }
    const auto add_unread = [&](const lsh::unread_estimate& unread, double alpha) {
      s.D0 += alpha * unread.mass[head_];
      for (std::size_t d = 0; d < query_.head_dim; ++d) {
        s.N0[d] += alpha * unread.num[head_ * query_.head_dim + d];
      }
    };
    if (chosen_.estimates) {
      add_unread(chosen_.row_unread, row_alpha_);
      add_unread(chosen_.whole_unread, tile_alpha_);
      add(s.N0, rise_, slope_);
    }
  }

  std::vector<unit> row_units() {
    std::vector<unit> units;
    for (std::size_t i = 0; i < chosen_.rows.size(); ++i) {
      const double pi = chosen_.thresholds[i] / 65536.0;
      const double w = row_weights_[i];
      const double ws = ht() ? 0.0 : row_alpha_ * double{chosen_.row_weights[at(i)]};
      const double m2 = chosen_.row_moments.empty()
                            ? 0.0
                            : row_alpha_ * row_alpha_ * double{chosen_.row_moments[at(i)]};
      unit made{vector(query_.head_dim, 0.0), w - ws, (1 - pi) / pi, pi, m2};
      add(made.y, w, value(chosen_.rows[i]));
      if (!ht()) {
        add(made.y, -ws, mean(chosen_.rows[i] / lsh::tile_tokens));
        add(made.y, chosen_.rises ? -ws * double{chosen_.row_rises[at(i)]} : 0.0, slope_);
        result_.correction_size += made.t * (w + ws);
      }
      units.push_back(made);
    }
    return units;
  }

  std::vector<unit> tile_units() {
    std::vector<unit> units;
    for (std::size_t i = 0; i < chosen_.tiles.size(); ++i) {
      const double pi = chosen_.tile_thresholds[i] / 65536.0;
      const double ws = tile_alpha_ * double{chosen_.tile_weights[at(i)]};
      unit made{tile_nums_[i], tile_masses_[i] - ws, (1 - pi) / pi, pi,
                tile_alpha_ * tile_alpha_ * double{chosen_.tile_moments[at(i)]}};
      add(made.y, -ws, mean(chosen_.tiles[i]));
      add(made.y, chosen_.rises ? -tile_alpha_ * double{chosen_.tile_rises[at(i)]} : 0.0, slope_);
      result_.correction_size += made.t * (tile_masses_[i] + ws);
      units.push_back(made);
    }
    return units;
  }

  void add_units(std::vector<unit>& units, bool corrected) {
    estimate_sums& s = result_.sums;
    for (unit& u : units) {
      vector centred = u.y;
      add(centred, -u.e / (s.D0 > 0 ? s.D0 : 1.0), s.N0);
      u.size2 = squared(centred);
      const double c = ht() ? (1 - u.p) / (u.p * u.p) : u.t * u.t * (1 - u.p);
      if (corrected) {
        add(s.C, u.t, u.y);
        s.Cd += u.t * u.e;
      }
      add(s.A, c * u.e, centred);
      s.SX += c * u.size2;
      s.SX2 += c * u.size2 * c * u.size2;
      s.SE += c * u.e * u.e;
      if (!ht()) {
        s.QX += u.t * u.size2;
        s.QE += u.t * u.e * u.e;
      }
    }
  }

  void sum_second_pass() {
    estimate_sums& s = result_.sums;
    s.C.assign(query_.head_dim, 0.0);
    s.A.assign(query_.head_dim, 0.0);
    std::vector<unit> rows = row_units();
    std::vector<unit> tiles = tile_units();
    add_units(rows, !ht());
    const double rows_spread = s.SX;
    add_units(tiles, true);
    double rows_t = 0, rows_model = 0, tiles_size = 0, tiles_t = 0, tiles_model = 0;
    for (const unit& u : rows) {
      rows_t += u.t * u.size2;
      rows_model += u.t * u.moment;
    }
    for (const unit& u : tiles) {
      tiles_size += u.size2;
      tiles_t += u.t * u.size2;
      tiles_model += u.moment;
    }
    if (ht()) {
      if (tiles.empty()) {
        result_.audited = !chosen_.any_whole;
      } else {
        s.QX = std::max(0.0,
                        tiles_size / std::max(tiles_model, 1e-300) * chosen_.audit_moments[head_] -
                            (s.SX - rows_spread));
      }
      return;
    }
    s.QX += rise_ * rise_ * slope_variance_;
    const double unread = tile_alpha_ * tile_alpha_ * chosen_.whole_moments[head_];
    if (unread > 0) {
      const double r = std::max(rows_model > 0 ? rows_t / rows_model : 0.0,
                                tiles_model > 0 ? tiles_size / tiles_model : 0.0);
      s.QX += std::max(0.0, r * unread - tiles_t);
      if (!chosen_.audits) {
        const double row_mass = row_alpha_ * chosen_.row_unread.mass[head_];
        result_.audited = false;
        s.kx = row_mass > 0
                   ? std::min(8.0, tile_alpha_ * chosen_.whole_unread.mass[head_] / row_mass)
                   : 0.0;
      }
    }
  }

  const lsh::selection& chosen_;
  const std::span<const lsh::tile_entry> tiles_;
  const lsh::selector_query& query_;
  const tile_rows& rows_;
  const std::uint32_t head_;
  reference_sums result_;
  vector row_weights_, tile_masses_;
  std::vector<vector> tile_nums_;
  double row_alpha_ = 1.0;
  double tile_alpha_ = 1.0;
  vector slope_;
  double slope_variance_ = 0.0;
  double rise_ = 0.0;
};

}  // namespace

std::vector<reference_sums> reference_estimate(const lsh::selection& chosen,
                                               std::span<const lsh::tile_entry> tiles,
                                               const lsh::selector_query& query,
                                               const tile_rows& rows) {
  std::vector<reference_sums> all;
  for (std::uint32_t head = 0; head < query.heads; ++head) {
    all.push_back(head_reference(chosen, tiles, query, rows, head).sums());
  }
  return all;
}

}  // namespace kvtier::test
