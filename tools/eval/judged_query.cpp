#include "tools/eval/judged_query.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>

#include "lsh/token_selector.hpp"

namespace kvtier::eval {
namespace {

constexpr std::uint32_t tile_tokens = lsh::tile_tokens;

[[noreturn]] void refuse(const head_case& data, const std::string& what) {
  throw std::invalid_argument("case \"" + data.data + "\": " + what);
}

void check_finite(const head_case& data, const char* what, std::span<const float> rows) {
  const auto bad =
      std::find_if(rows.begin(), rows.end(), [](float value) { return !std::isfinite(value); });
  if (bad != rows.end()) {
    const auto token = static_cast<std::size_t>(bad - rows.begin()) / data.head_dim;
    refuse(data, std::string("the ") + what + " of token " + std::to_string(token) + " holds " +
                     std::to_string(*bad) + "; only finite numbers can be judged");
  }
}

void check(const head_case& data) {
  if (data.head_dim != 64 && data.head_dim != 128 && data.head_dim != 256) {
    refuse(data, "head_dim " + std::to_string(data.head_dim) + " is not 64, 128 or 256");
  }
  if (data.heads < 1 || data.heads > 8) {
    refuse(data, std::to_string(data.heads) + " query heads per KV head; there may be 1 to 8");
  }
  if (data.keys.size() != data.values.size() || data.keys.size() % data.head_dim != 0) {
    refuse(data, "keys and values are not [tokens][head_dim] of the same tokens");
  }
  check_finite(data, "key", data.keys);
  check_finite(data, "value", data.values);
  if (data.queries.empty()) {
    refuse(data, "it has no query");
  }
  for (const head_query& query : data.queries) {
    if (query.values.size() != std::size_t{data.heads} * data.head_dim) {
      refuse(data, "a query is not [heads][head_dim]");
    }
    if (query.context > data.tokens()) {
      refuse(data, "a query's context of " + std::to_string(query.context) +
                       " tokens is longer than the data's " + std::to_string(data.tokens()));
    }
    if (!std::all_of(query.values.begin(), query.values.end(),
                     [](float value) { return std::isfinite(value); })) {
      refuse(data, "the query of step " + std::to_string(query.step) +
                       " is not finite; only finite numbers can be judged");
    }
  }
}

/// Attention that is added up token by token, rescaled when a larger logit comes.
class running_attention {
 public:
  explicit running_attention(std::uint32_t head_dim) : num_(head_dim, 0.0) {}

  void add(double logit, const float* value) {
    if (logit > top_) {
      const double keep = std::exp(top_ - logit);
      den_ *= keep;
      for (double& x : num_) {
        x *= keep;
      }
      top_ = logit;
    }
    const double weight = std::exp(logit - top_);
    den_ += weight;
    for (std::size_t d = 0; d < num_.size(); ++d) {
      num_[d] += weight * double{value[d]};
    }
  }

  attended_head result() const {
    attended_head made{num_, -std::numeric_limits<double>::infinity()};
    if (den_ > 0.0) {
      made.lse = top_ + std::log(den_);
      for (double& x : made.o) {
        x /= den_;
      }
    }
    return made;
  }

 private:
  double top_ = -std::numeric_limits<double>::infinity();
  double den_ = 0.0;
  std::vector<double> num_;
};

double logit_of(const float* query, const float* key, std::uint32_t head_dim) {
  double sum = 0.0;
  for (std::uint32_t d = 0; d < head_dim; ++d) {
    sum += double{query[d]} * double{key[d]};
  }
  return sum / std::sqrt(static_cast<double>(head_dim));
}

std::int16_t mass_of(const attended_head& window) {
  if (!std::isfinite(window.lse)) {
    return lsh::no_window_mass;
  }
  constexpr double most = std::numeric_limits<std::int16_t>::max();
  return static_cast<std::int16_t>(std::clamp(std::rint(64.0 * window.lse), -most, most));
}

}  // namespace

stored_case::stored_case(const head_case& data, const exact_window& window)
    : data_(data), window_(window) {
  check(data);
  for (const head_query& query : data.queries) {
    longest_ = std::max(longest_, query.context);
    if (tiles_of(query.context) == 0) {
      refuse(data, "a query's context of " + std::to_string(query.context) +
                       " tokens leaves no tile of 64 beside " + std::to_string(window.sinks) +
                       " first and " + std::to_string(window.recent) +
                       " last ones; give more tokens");
    }
  }
  const std::size_t half = data.head_dim * element_bytes(data.element);
  row_bytes_ = 2 * half;
  rows_.resize(tiles() * tile_tokens * row_bytes_);
  for (std::size_t i = 0; i < tiles() * tile_tokens; ++i) {
    const std::size_t at = (window.sinks + i) * data.head_dim;
    from_float(data.element, data.keys.data() + at, rows_.data() + i * row_bytes_, data.head_dim);
    from_float(data.element, data.values.data() + at, rows_.data() + i * row_bytes_ + half,
               data.head_dim);
  }
}

std::size_t stored_case::tiles_of(std::uint64_t context) const noexcept {
  const std::uint64_t kept = std::uint64_t{window_.sinks} + window_.recent;
  return context > kept ? (context - kept) / tile_tokens : 0;
}

const float* stored_case::tile_keys(std::size_t tile) const noexcept {
  return data_.keys.data() + (window_.sinks + tile * tile_tokens) * data_.head_dim;
}

const float* stored_case::tile_values(std::size_t tile) const noexcept {
  return data_.values.data() + (window_.sinks + tile * tile_tokens) * data_.head_dim;
}

const std::byte* stored_case::row(std::size_t tile, std::uint32_t token) const noexcept {
  return rows_.data() + (tile * tile_tokens + token) * row_bytes_;
}

judged_query judge(const stored_case& stored, std::size_t query) {
  const head_case& data = stored.data();
  const head_query& asked = data.queries[query];
  judged_query made;
  made.number = query;
  made.tiles = stored.tiles_of(asked.context);
  const std::size_t first = stored.window().sinks;
  const std::size_t last = first + made.tiles * tile_tokens;
  for (std::uint32_t head = 0; head < data.heads; ++head) {
    const float* values = asked.values.data() + std::size_t{head} * data.head_dim;
    running_attention window(data.head_dim), all(data.head_dim);
    std::vector<float> logits;
    std::size_t heaviest = SIZE_MAX;
    double largest = -std::numeric_limits<double>::infinity();
    for (std::size_t token = 0; token < asked.context; ++token) {
      const double logit =
          logit_of(values, data.keys.data() + token * data.head_dim, data.head_dim);
      const float* value = data.values.data() + token * data.head_dim;
      const bool offloaded = token >= first && token < last;
      all.add(logit, value);
      if (offloaded) {
        logits.push_back(static_cast<float>(logit));
      } else {
        window.add(logit, value);
      }
      if (logit > largest) {
        largest = logit;
        heaviest = offloaded ? token - first : SIZE_MAX;
      }
    }
    made.window.push_back(window.result());
    made.exact.push_back(all.result());
    made.window_mass.push_back(stored.window().mass_known ? mass_of(made.window.back())
                                                          : lsh::no_window_mass);
    made.heaviest.push_back(heaviest);
    made.logits.push_back(std::move(logits));
  }
  return made;
}

}  // namespace kvtier::eval
