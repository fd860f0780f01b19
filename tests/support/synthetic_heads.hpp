/// Seeded keys, values and queries of one KV head with 4 query heads, of the kinds on which the
/// sampler was settled (sampler.md, section 1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace kvtier::test {

enum class head_kind : std::uint8_t {
  g1,      ///< Gaussian keys, independent queries, logits of standard deviation 1
  g2,      ///< ... 2
  g3,      ///< ... 3
  g4,      ///< ... 4
  gm,      ///< 1, 2, 3 and 4 in one group, correlated queries
  flat,    ///< .3
  needle,  ///< 1.5, and 6 keys that hold most of the mass
  clust,   ///< 2, runs of 50 tokens share half of the variance of keys and values
  vk,      ///< 2, values linear in keys: the worst case for mean values of tiles
};

std::string_view to_string(head_kind kind) noexcept;

/// All values are exact in bf16.
struct synthetic_head {
  static constexpr std::uint32_t heads = 4;
  static constexpr std::uint32_t sinks = 4;    ///< first tokens, of the window
  static constexpr std::uint32_t recent = 64;  ///< last tokens, of the window

  std::uint32_t head_dim = 0;
  std::vector<float> keys, values;                ///< [tokens][head_dim] without the window
  std::vector<float> window_keys, window_values;  ///< [sinks + recent][head_dim]
  std::vector<float> queries;                     ///< [heads][head_dim]
};

/// `tokens` tokens beside the window's.
synthetic_head make_synthetic_head(head_kind kind, std::uint32_t tokens, std::uint32_t head_dim,
                                   std::uint64_t seed);

/// Exact attention of one query head, float64.
struct attended_head {
  std::vector<double> o;  ///< [head_dim]
  double lse = 0.0;       ///< natural log
};
attended_head attend_window(const synthetic_head& data, std::uint32_t head);
attended_head attend_all(const synthetic_head& data, std::uint32_t head);

}  // namespace kvtier::test
