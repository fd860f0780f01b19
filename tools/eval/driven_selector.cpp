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

/// The options tried that came nearest to a budget, by the ratio of the rows.
class nearest_options {
 public:
  explicit nearest_options(double budget) : budget_(budget) {}

  void offer(const selector_config& tried, double rows) {
    const double distance = std::abs(std::log(std::max(rows, 1 / million) / budget_));
    if (distance < distance_) {
      options_ = tried;
      distance_ = distance;
    }
  }
  bool within(double part) const { return distance_ < part; }
  const selector_config& options() const { return options_; }

 private:
  const double budget_;
  selector_config options_;
  double distance_ = INFINITY;
};

/// Rows grow with the mass, by which law depends on the head: for flat ones a thousandth of the
/// mass is a thousandth of the rows, for sharp ones the last thousandth takes more than all before.
/// So ln(mass / (1 - mass)) is halved.
selector_config driven_mass(selector_config options, double budget, const rows_of_selector& rows) {
  if (budget >= 1.0) {
    options.mass_ppm = ppm(1.0);
    return options;
  }
  double low = -std::log(million), high = std::log(million);
  constexpr int halvings = 16;
  constexpr double near = .01;
  nearest_options nearest(budget);
  for (int i = 0; i < halvings && !nearest.within(near); ++i) {
    const double middle = (low + high) / 2;
    options.mass_ppm = ppm(1 / (1 + std::exp(-middle)));
    const double found = rows(options);
    nearest.offer(options, found);
    (found > budget ? high : low) = middle;
  }
  return nearest.options();
}

/// Rows go like a power of the number of tables, 2 where hits are rare.
selector_config driven_tables(selector_config options, double budget,
                              const rows_of_selector& rows) {
  constexpr std::uint32_t least = 2, most = 1024;
  constexpr int steps = 5;
  constexpr double near = .03;  // a try costs an index
  double tables = options.hash_tables;
  nearest_options nearest(budget);
  double power = 1.5;
  double before_tables = 0.0, before_rows = 0.0;
  for (int i = 0; i < steps && !nearest.within(near); ++i) {
    options.hash_tables =
        static_cast<std::uint32_t>(std::clamp(std::rint(tables), double{least}, double{most}));
    const double found = std::max(rows(options), 1 / million);
    nearest.offer(options, found);
    if (before_rows > 0.0 && before_tables != options.hash_tables && found != before_rows) {
      const double slope =
          std::log(found / before_rows) / std::log(options.hash_tables / before_tables);
      power = std::clamp(slope, .5, 2.5);
    }
    before_rows = found;
    before_tables = options.hash_tables;
    tables = options.hash_tables * std::pow(budget / found, 1 / power);
  }
  return nearest.options();
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
