#include "lsh/faiss_index.hpp"

#include <faiss/IndexFlat.h>
#include <faiss/IndexHNSW.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/IndexLSH.h>
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "cpu/element.hpp"

namespace kvtier::lsh {

/// What is trained and then takes one tile after the other.
class faiss_content {
 public:
  virtual ~faiss_content() = default;
  /// keys [64][head_dim]
  virtual void add(const float* keys) = 0;
  /// labels [k]: what was found, -1 where there is nothing more.
  virtual void search(const float* query, std::int64_t k, std::int64_t* labels) const = 0;
  virtual std::size_t bytes() const noexcept = 0;

 protected:
  faiss_content() = default;
  faiss_content(const faiss_content&) = default;
  faiss_content& operator=(const faiss_content&) = default;
};

namespace {

/// FAISS's loops run on this thread while it lives: more of them add in other orders.
class single_openmp_thread {
 public:
  single_openmp_thread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~single_openmp_thread() { omp_set_num_threads(before_); }
  single_openmp_thread(const single_openmp_thread&) = delete;
  single_openmp_thread& operator=(const single_openmp_thread&) = delete;

 private:
  int before_;
};

/// Keys that an index may be trained with.
struct training_keys {
  std::vector<float> values;  // [tokens][head_dim]
  std::uint32_t head_dim;
  std::size_t tokens() const { return values.size() / head_dim; }
};

std::size_t bytes_of(std::int64_t tokens, std::size_t each) {
  return static_cast<std::size_t>(tokens) * each;
}

class hnsw_content final : public faiss_content {
 public:
  hnsw_content(const selector_config& options, std::uint32_t head_dim)
      : ef_(options.faiss_ef),
        index_(static_cast<int>(head_dim), static_cast<int>(options.faiss_m),
               faiss::METRIC_INNER_PRODUCT) {
    index_.hnsw.efConstruction = construction_effort;
  }

  void add(const float* keys) override { index_.add(tile_tokens, keys); }

  void search(const float* query, std::int64_t k, std::int64_t* labels) const override {
    // In FAISS 1.7.3 the parameter of a search says when it stops; how broad it is until then is
    // the larger of the index's own efSearch and the number of tokens asked for.
    constexpr std::int64_t least = 64;
    const std::int64_t ef = ef_ == 0 ? std::max(least, 2 * k) : std::max<std::int64_t>(ef_, k);
    const auto found = static_cast<std::size_t>(std::min(ef, index_.ntotal));
    std::vector<float> products(found);
    std::vector<std::int64_t> all(found, -1);
    faiss::SearchParametersHNSW effort;
    effort.efSearch = static_cast<int>(ef);
    index_.search(1, query, static_cast<std::int64_t>(found), products.data(), all.data(), &effort);
    std::copy_n(all.begin(), k, labels);
  }

  std::size_t bytes() const noexcept override {
    return bytes_of(index_.ntotal, static_cast<std::size_t>(index_.d) * sizeof(float) +
                                       sizeof(std::size_t) + sizeof(int)) +
           index_.hnsw.neighbors.size() * sizeof(index_.hnsw.neighbors[0]);
  }

 private:
  static constexpr int construction_effort = 100;

  std::uint32_t ef_;
  faiss::IndexHNSWFlat index_;
};

class ivf_content final : public faiss_content {
 public:
  ivf_content(const selector_config& options, const training_keys& training)
      : probes_(options.faiss_probes),
        lists_(lists_of(options, training.tokens())),
        quantizer_(training.head_dim),
        index_(&quantizer_, training.head_dim, lists_, faiss::METRIC_INNER_PRODUCT) {
    index_.cp.seed = 1;
    index_.cp.min_points_per_centroid = 1;  // fewer than 39 make FAISS print a warning
    index_.train(static_cast<std::int64_t>(training.tokens()), training.values.data());
  }

  void add(const float* keys) override { index_.add(tile_tokens, keys); }

  void search(const float* query, std::int64_t k, std::int64_t* labels) const override {
    std::vector<float> products(static_cast<std::size_t>(k));
    faiss::SearchParametersIVF effort;
    for (effort.nprobe = std::min(probes_, lists_);;
         effort.nprobe = std::min(2 * effort.nprobe, lists_)) {
      index_.search(1, query, k, products.data(), labels, &effort);
      if (labels[k - 1] >= 0 || effort.nprobe == lists_) {
        return;
      }
    }
  }

  std::size_t bytes() const noexcept override {
    const std::size_t row = static_cast<std::size_t>(index_.d) * sizeof(float);
    return bytes_of(index_.ntotal, row + sizeof(std::int64_t)) + lists_ * row;
  }

 private:
  static std::size_t lists_of(const selector_config& options, std::size_t tokens) {
    const double usual = 4.0 * std::sqrt(static_cast<double>(tokens));
    const std::size_t wanted =
        options.faiss_lists > 0 ? options.faiss_lists : static_cast<std::size_t>(usual);
    return std::min(wanted, tokens);
  }

  std::size_t probes_;
  std::size_t lists_;
  faiss::IndexFlatIP quantizer_;
  faiss::IndexIVFFlat index_;
};

/// Signs say nothing of keys that all lie on one side: keys are taken from their mean. Hamming
/// distances to the query's signs rank the tokens.
class lsh_content final : public faiss_content {
 public:
  lsh_content(const selector_config& options, const training_keys& training)
      : mean_(mean_of_keys(training.values, training.head_dim)),
        index_(
            training.head_dim,
            static_cast<int>(options.faiss_bits > 0 ? options.faiss_bits : 2 * training.head_dim)) {
  }

  void add(const float* keys) override {
    std::vector<float> centred(keys, keys + tile_tokens * mean_.size());
    for (std::size_t i = 0; i < centred.size(); ++i) {
      centred[i] -= mean_[i % mean_.size()];
    }
    index_.add(tile_tokens, centred.data());
  }

  void search(const float* query, std::int64_t k, std::int64_t* labels) const override {
    std::vector<float> distances(static_cast<std::size_t>(k));
    index_.search(1, query, k, distances.data(), labels);
  }

  std::size_t bytes() const noexcept override {
    return index_.codes.size() + index_.rrot.A.size() * sizeof(float);
  }

 private:
  std::vector<float> mean_;
  faiss::IndexLSH index_;
};

/// How many of `tiles` tiles are trained with: all but less than an eighth, so that a list that
/// grows by a tile is seldom trained anew. HNSW needs no training.
std::size_t tiles_to_train(faiss_kind kind, std::size_t tiles) {
  if (kind == faiss_kind::hnsw) {
    return 0;
  }
  constexpr int kept_bits = 4;
  const int dropped = std::max(0, static_cast<int>(std::bit_width(tiles)) - kept_bits);
  return tiles >> dropped << dropped;
}

}  // namespace

float faiss_keys::tame(float x) noexcept {
  constexpr float most = 1e15f;  // the square of it, times 256, is still finite
  return std::isfinite(x) ? std::clamp(x, -most, most) : 0.0f;
}

std::size_t faiss_keys::bytes() const noexcept {
  return std::size_t{tile_tokens} * head_dim_ * element_bytes(element_type::bf16);
}

void faiss_keys::write(const float* keys, std::byte* index) const {
  std::vector<float> tamed(keys, keys + std::size_t{tile_tokens} * head_dim_);
  std::transform(tamed.begin(), tamed.end(), tamed.begin(), tame);
  from_float(element_type::bf16, tamed.data(), index, tamed.size());
}

void faiss_keys::read(const std::byte* index, float* keys) const noexcept {
  to_float(element_type::bf16, index, keys, std::size_t{tile_tokens} * head_dim_);
}

void faiss_keys::read_token(const std::byte* index, std::uint32_t token,
                            float* key) const noexcept {
  to_float(element_type::bf16, index + token * (bytes() / tile_tokens), key, head_dim_);
}

faiss_index::faiss_index(const selector_config& options, std::uint32_t head_dim)
    : options_(options), keys_(head_dim) {}

faiss_index::~faiss_index() = default;

std::size_t faiss_index::tiles() const noexcept { return held_; }

std::size_t faiss_index::bytes() const noexcept {
  return content_ == nullptr ? 0 : content_->bytes();
}

void faiss_index::start(std::span<const tile_entry> tiles, std::size_t trained) {
  const std::size_t tile_values = std::size_t{tile_tokens} * keys_.head_dim();
  training_keys training{std::vector<float>(trained * tile_values), keys_.head_dim()};
  for (std::size_t i = 0; i < trained; ++i) {
    keys_.read(tiles[i].index, training.values.data() + i * tile_values);
  }
  held_ = 0;
  content_.reset();
  switch (options_.faiss_index) {
    case faiss_kind::hnsw:
      content_ = std::make_unique<hnsw_content>(options_, keys_.head_dim());
      break;
    case faiss_kind::ivf:
      content_ = std::make_unique<ivf_content>(options_, training);
      break;
    case faiss_kind::lsh:
      content_ = std::make_unique<lsh_content>(options_, training);
      break;
  }
  trained_ = trained;
}

void faiss_index::cover(std::span<const tile_entry> tiles) {
  const single_openmp_thread alone;
  try {
    const std::size_t trained = tiles_to_train(options_.faiss_index, tiles.size());
    if (content_ == nullptr || trained != trained_) {
      start(tiles, trained);
    }
    std::vector<float> keys(std::size_t{tile_tokens} * keys_.head_dim());
    // Always by the tile: what FAISS makes of tokens depends on which are added together.
    for (; held_ < tiles.size(); ++held_) {
      keys_.read(tiles[held_].index, keys.data());
      content_->add(keys.data());
    }
  } catch (...) {
    held_ = 0;
    content_.reset();
    throw;
  }
}

std::vector<std::uint32_t> faiss_index::search(const float* query, std::size_t k) const {
  const single_openmp_thread alone;
  std::vector<std::int64_t> labels(k, -1);
  content_->search(query, static_cast<std::int64_t>(k), labels.data());
  std::vector<std::uint32_t> found;
  found.reserve(k);
  for (const std::int64_t label : labels) {
    if (label >= 0) {
      found.push_back(static_cast<std::uint32_t>(label));
    }
  }
  return found;
}

}  // namespace kvtier::lsh
