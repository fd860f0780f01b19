#include "tools/eval/result_groups.hpp"

#include <cmath>
#include <limits>

namespace kvtier::eval {

std::vector<data_group> by_data(std::span<const method_errors> results) {
  std::vector<data_group> groups;
  for (const method_errors& one : results) {
    auto group = std::find_if(groups.begin(), groups.end(), [&](const data_group& known) {
      return known.data == one.data && known.tokens == asked_tokens(one);
    });
    if (group == groups.end()) {
      groups.push_back({one.data, asked_tokens(one), {}});
      group = groups.end() - 1;
    }
    group->results.push_back(&one);
  }
  const auto names = distinct(results, [](const method_errors& one) { return one.data; });
  const auto place = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) - names.begin();
  };
  std::stable_sort(groups.begin(), groups.end(), [&](const data_group& a, const data_group& b) {
    return a.data == b.data ? a.tokens < b.tokens : place(a.data) < place(b.data);
  });
  return groups;
}

double selector_group::geometric_mean_error() const {
  double log_sum = 0.0;
  for (const method_errors* const one : results) {
    log_sum +=
        std::isnan(one->mean_error) ? one->mean_error : std::log(std::max(one->mean_error, 1e-12));
  }
  return std::exp(log_sum / static_cast<double>(results.size()));
}

const method_errors* selector_group::worst() const {
  const method_errors* worst = nullptr;
  for (const method_errors* const one : results) {
    if (!std::isnan(one->mean_error) && (worst == nullptr || one->mean_error > worst->mean_error)) {
      worst = one;
    }
  }
  return worst;
}

double selector_group::mean(double method_errors::*value) const {
  double sum = 0.0;
  std::size_t count = 0;
  for (const method_errors* const one : results) {
    if (std::isfinite(one->*value)) {
      sum += one->*value;
      ++count;
    }
  }
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
}

std::vector<selector_group> by_selector(std::span<const method_errors> results) {
  std::vector<selector_group> groups;
  for (const method_errors& one : results) {
    auto group = std::find_if(groups.begin(), groups.end(), [&](const selector_group& known) {
      return known.selector == asked_selector(one) && known.tokens == asked_tokens(one) &&
             known.budget == one.budget;
    });
    if (group == groups.end()) {
      groups.push_back({asked_tokens(one), one.budget, asked_selector(one), {}});
      group = groups.end() - 1;
    }
    group->results.push_back(&one);
  }
  // A budget that is not a number would leave the order undefined.
  const auto key = [](const selector_group& group) {
    return std::pair(group.tokens, std::isfinite(group.budget) ? group.budget : 0.0);
  };
  std::stable_sort(
      groups.begin(), groups.end(),
      [&](const selector_group& a, const selector_group& b) { return key(a) < key(b); });
  return groups;
}

}  // namespace kvtier::eval
