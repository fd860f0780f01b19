/// The golden vectors of the sketch sampler, tests/golden/sampler/sampler_golden.json, as plain
/// structs. sampler_reference.py beside the file says what the fields mean (function `golden`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvtier::lsh::golden {

/// The token indexes of a set's tiles at one number of bits, and the scores of its queries.
struct index_vectors {
  std::uint32_t bits = 0;
  std::vector<std::uint8_t> planes;  ///< [tiles][64][bits][D/8], plane 0 = sign
  std::vector<std::int8_t> mu8;      ///< [tiles][D]
  std::vector<std::int32_t> em;      ///< [tiles]
  std::vector<std::uint8_t> f8;      ///< [tiles][64]
  std::vector<float> fs;             ///< [tiles]
  std::vector<std::int8_t> vb8;      ///< [tiles][D]
  std::vector<float> vs;             ///< [tiles]
  std::vector<std::int16_t> s16;     ///< [heads][tiles][64]
  std::vector<std::uint8_t> tau4;    ///< [heads][tiles][64]
};

/// One plan, its draw, the host's sums and the merge. Vectors over heads unless said otherwise.
struct sample_case {
  std::string name;
  std::uint32_t bits = 0;
  std::string mode;                  ///< "ht" or "shrink"
  std::vector<std::uint32_t> whole;  ///< positions of whole tiles
  std::uint32_t ppm = 0;
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint32_t T = 0;
  std::int64_t m_r = 0;
  std::int64_t t = 0;
  std::int32_t J = 0;
  std::vector<std::int32_t> smax;
  std::vector<double> D_g, kg;
  std::vector<std::uint32_t> tile_thr;  ///< [tiles] 65536 Pi
  std::vector<std::uint16_t> u;         ///< [tiles][64]
  std::vector<std::uint32_t> tile_u;    ///< [tiles]
  std::vector<std::uint32_t> ids;       ///< position * 64 + token
  std::vector<std::uint32_t> thr_rows;  ///< [ids] 65536 pi
  std::vector<std::uint32_t> tiles;     ///< positions read as a whole
  std::vector<double> N0, C, A, o;      ///< [heads][D]
  std::vector<double> lse, beta, bound, n;
  std::vector<bool> audited;
  std::vector<double> ref, D0, Cd, SX, SX2, SE, QX, QE, kx;
};

/// One context of one KV head with a group of queries.
struct context_set {
  std::uint32_t D = 0;
  std::uint32_t nb = 0;                ///< tiles
  std::uint32_t G = 0;                 ///< query heads
  std::vector<std::uint16_t> K, V;     ///< bf16 [tiles * 64][D]
  std::vector<std::uint16_t> Q;        ///< bf16 [heads][D]
  std::vector<std::int16_t> win64;     ///< [heads]
  std::vector<double> dev_o, exact_o;  ///< [heads][D]
  std::vector<double> dev_lse;         ///< [heads]
  std::vector<std::uint64_t> tile;     ///< [tiles] absolute token index / 64
  std::vector<std::uint64_t> seq;      ///< [tiles] sequence that sealed it
  std::uint32_t layer = 0;
  std::uint32_t kv_head = 0;
  std::vector<index_vectors> index;
  std::vector<sample_case> cases;

  /// The vectors at `bits`; throws std::out_of_range if there are none.
  const index_vectors& index_of(std::uint32_t bits) const;
};

struct sampler_vectors {
  std::uint32_t rotation_seed = 0;
  std::vector<double> expb, expg_shrink;                        ///< [128]
  std::vector<double> p32;                                      ///< [32]
  std::vector<std::int64_t> expi;                               ///< [261]
  std::map<std::uint32_t, float> a_q;                           ///< by D
  std::map<std::uint32_t, std::map<std::uint32_t, float>> u_q;  ///< by bits, then D
  std::vector<context_set> sets;
};

/// The file's contents, read once per process. Throws what the parser throws.
const sampler_vectors& vectors();

/// Exact fp32 values of bf16 ones.
std::vector<float> widened(const std::vector<std::uint16_t>& values);

}  // namespace kvtier::lsh::golden
