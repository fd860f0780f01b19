/// A synthetic head behind the library's selector and sampled attention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lsh/sampled_attention.hpp"
#include "tests/support/reference_finish.hpp"
#include "tests/support/synthetic_heads.hpp"

namespace kvtier::test {

/// What one draw gave.
struct head_sample {
  std::vector<estimate_sums> sums;  ///< [heads]
  std::vector<bool> certifiable;    ///< [heads]
  std::size_t rows_read = 0;        ///< tiles included
};

class sampled_head {
 public:
  /// The first `whole_tiles` tiles are whole ones.
  sampled_head(synthetic_head data, std::uint32_t bits, std::uint32_t whole_tiles = 0);

  head_sample sample(const selector_config& options, std::uint64_t seed) const;

  const synthetic_head& data() const { return data_; }
  std::size_t tokens() const { return tiles_.size() * lsh::tile_tokens; }
  const attended_head& window(std::uint32_t head) const { return window_[head]; }
  const attended_head& exact(std::uint32_t head) const { return exact_[head]; }
  /// Of the tokens beside the window, in units of exp(reference).
  double exact_den(std::uint32_t head, double reference) const;
  std::vector<double> exact_num(std::uint32_t head, double reference) const;

 private:
  const std::byte* row(std::size_t token) const;

  synthetic_head data_;
  std::vector<std::byte> rows_;  // bf16 [tokens][K | V]
  std::vector<std::byte> indexes_;
  std::vector<lsh::tile_entry> tiles_;
  std::vector<std::int16_t> window_mass_;
  std::vector<attended_head> window_, exact_;
};

/// |estimate - exact| / |exact|
double relative_error(const std::vector<double>& estimate, const std::vector<double>& exact);

}  // namespace kvtier::test
