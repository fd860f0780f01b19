/// Rows of one KV head in memory behind any selector, and what they truly weigh.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/element.hpp"
#include "cpu/task_arena.hpp"
#include "lsh/selector.hpp"
#include "lsh/token_selector.hpp"

namespace kvtier::test {

/// Sums over tokens in units of exp(reference).
struct head_sums {
  double den = 0.0;
  std::vector<double> num;  ///< [head_dim]
};

/// How a selection is made; results must not depend on the second half.
struct choosing {
  std::uint64_t seed = 1;
  bool last_tile_first = false;
  cpu::task_arena* helpers = nullptr;
};

class stored_head {
 public:
  static constexpr std::uint32_t head_dim = 64;

  /// Gaussian keys, values and queries: logits have the standard deviation `spread`.
  stored_head(std::size_t tile_count, std::uint32_t heads, double spread, std::uint32_t seed,
              element_type element = element_type::bf16);

  /// Rounds keys and values to the element and writes the rows: to be called after changes.
  void store();

  lsh::selection choose(const selector_config& options, const choosing& how = {}) const;
  /// By lsh::sampled_attention, [heads].
  std::vector<head_sums> attend(const lsh::selection& chosen) const;
  /// Of all tokens, float64.
  head_sums exact(std::uint32_t head, double reference) const;
  /// exp(logit), [tokens], float64.
  std::vector<double> weights(std::uint32_t head) const;
  /// Natural log.
  void set_window(std::uint32_t head, double log_mass);

  std::uint32_t heads() const { return heads_; }
  std::size_t tokens() const { return tiles.size() * lsh::tile_tokens; }

  std::vector<float> keys, values;  ///< [tokens][head_dim]
  std::vector<float> queries;       ///< [heads][head_dim]
  std::vector<lsh::tile_entry> tiles;

 private:
  const std::byte* row(std::size_t token) const;
  lsh::selector_query query() const;

  std::uint32_t heads_;
  element_type element_;
  std::vector<std::byte> rows_;
  std::vector<std::int16_t> window_mass_;
};

/// Mean and spread of a number over draws.
class draw_mean {
 public:
  void add(double x) {
    ++count_;
    const double step = x - mean_;
    mean_ += step / count_;
    squares_ += step * (x - mean_);
  }
  double mean() const { return mean_; }
  /// Standard deviations of the mean between it and `truth`.
  double distance(double truth) const;

 private:
  double count_ = 0.0;
  double mean_ = 0.0;
  double squares_ = 0.0;
};

/// What many seeds gave.
struct draw_statistics {
  draw_mean rows;                    ///< read, tiles included
  std::vector<double> frequency;     ///< [tokens] share of the draws that read it
  std::vector<double> inclusion;     ///< [tokens] pi as the draws tell it, 0 if never drawn
  double worst_den = 0.0;            ///< |z| of the mean denominator, of all heads
  double worst_num = 0.0;            ///< of the mean numerator, of all coordinates
  std::vector<double> output_error;  ///< [heads] mean of |o^ - o| / |o|
};

/// `draws` seeds.
draw_statistics draw_often(const stored_head& head, const selector_config& options,
                           std::uint64_t draws);

/// Reads of tokens that are drawn by themselves are as frequent as their pi says.
void expect_frequencies(const draw_statistics& drawn, std::uint64_t draws);

/// The selection is the same for other orders of tiles and with helpers.
void expect_same_by_any_helpers(const stored_head& head, const selector_config& options);

}  // namespace kvtier::test
