#include "tools/eval/driven_selector.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvtier::eval {
namespace {

constexpr double million = 1e6;

std::uint32_t ppm(double share) {
  return static_cast<std::uint32_t>(std::clamp(std::rint(share * million), 1.0, million));
}

/// The mass grows with what is read: halved in the logarithm of what is left out, for the last
/// thousandth may take more tokens than all before.
selector_config driven_mass(selector_config options, double budget, const rows_of_selector& rows) {
  double low = std::log(1 / million), high = 0.0;  // of 1 - mass
  constexpr int halvings = 12;
  for (int i = 0; i < halvings; ++i) {
    const double middle = (low + high) / 2;
    options.mass_ppm = ppm(1.0 - std::exp(middle));
    (rows(options) > budget ? low : high) = middle;
  }
  options.mass_ppm = ppm(1.0 - std::exp(high));
  return options;
}

/// Rows go like a power of the number of tables, 2 where hits are rare.
selector_config driven_tables(selector_config options, double budget,
                              const rows_of_selector& rows) {
  constexpr std::uint32_t least = 2, most = 1024;
  constexpr int steps = 5;
  constexpr double near = .03;
  double tables = options.hash_tables;
  selector_config best = options;
  double best_distance = INFINITY;
  double power = 1.5;
  double before_tables = 0.0, before_rows = 0.0;
  for (int i = 0; i < steps; ++i) {
    options.hash_tables =
        static_cast<std::uint32_t>(std::clamp(std::rint(tables), double{least}, double{most}));
    const double found = std::max(rows(options), 1 / million);
    const double distance = std::abs(std::log(found / budget));
    if (distance < best_distance) {
      best = options;
      best_distance = distance;
    }
    if (distance < near) {
      break;
    }
    if (before_rows > 0.0 && before_tables != options.hash_tables && found != before_rows) {
      const double slope =
          std::log(found / before_rows) / std::log(options.hash_tables / before_tables);
      power = std::clamp(slope, .5, 2.5);
    }
    before_rows = found;
    before_tables = options.hash_tables;
    tables = options.hash_tables * std::pow(budget / found, 1 / power);
  }
  return best;
}

}  // namespace

selector_config driven_to(selector_config options, double budget, const rows_of_selector& rows) {
  options.budget_ppm = ppm(budget);
  if (options.kind == selector_kind::topp) {
    return driven_mass(options, budget, rows);
  }
  if (options.kind == selector_kind::lsh) {
    return driven_tables(options, budget, rows);
  }
  return options;
}

}  // namespace kvtier::eval
