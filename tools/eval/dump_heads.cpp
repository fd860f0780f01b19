#include "tools/eval/dump_heads.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>
#include <string>
#include <string_view>

#include "tools/decoder/safetensors.hpp"

namespace kvtier::eval {
namespace {

using decoder::model_error;
using decoder::tensor_view;

class dump_reader {
 public:
  explicit dump_reader(const std::filesystem::path& file)
      : file_(file), name_((file.parent_path() / file.stem()).string()) {}

  /// Ascending.
  std::set<std::uint32_t> layers() const {
    std::set<std::uint32_t> made;
    for (const auto& [name, tensor] : file_.tensors()) {
      constexpr std::string_view prefix = "layer.";
      std::uint32_t layer = 0;
      const char* const end = name.data() + name.size();
      const bool begins = std::string_view(name).starts_with(prefix);
      const auto [rest, error] =
          std::from_chars(name.data() + (begins ? prefix.size() : 0), end, layer);
      const std::string_view part(rest, static_cast<std::size_t>(end - rest));
      if (!begins || error != std::errc() ||
          (part != ".k" && part != ".v" && part != ".q" && part != ".q_positions")) {
        fail(name, "a dump holds layer.<i>.k, .v, .q and .q_positions only; remove it");
      }
      made.insert(layer);
    }
    if (made.empty()) {
      throw model_error(file_.path().string() + ": no layer.<i>.k, so this is no dump of heads; " +
                        "make one with tools/python/dump_qkv.py");
    }
    return made;
  }

  std::vector<head_case> load(std::uint32_t layer) const {
    const std::string prefix = "layer." + std::to_string(layer);
    const named k = find(prefix + ".k");
    const named v = find(prefix + ".v");
    const named q = find(prefix + ".q");
    require_rank(k, "[kv_heads, tokens, head_dim]");
    require_rank(q, "[query_heads, queries, head_dim]");
    const std::uint64_t kv_heads = k->shape[0];
    const std::uint64_t dim = k->shape[2];
    if (dim != 64 && dim != 128 && dim != 256) {
      fail(k, "head_dim must be 64, 128 or 256");
    }
    if (v->shape != k->shape || v->dtype != k->dtype) {
      fail(v, "expected the shape and type of " + k.name + ": " + k->dtype + " " +
                  decoder::to_string(k->shape));
    }
    const std::uint64_t group = q->shape[0] / kv_heads;
    if (q->shape[2] != dim || q->shape[0] % kv_heads != 0 || group > most_heads) {
      fail(q, "expected [query_heads, queries, " + std::to_string(dim) +
                  "] with a multiple of the " + std::to_string(kv_heads) +
                  " KV heads, at most 8 times as many");
    }
    const element_type element = element_of(k);
    element_of(q);
    const std::vector<std::uint64_t> positions =
        read_positions(prefix + ".q_positions", q->shape[1], k->shape[1]);
    std::vector<head_case> made;
    for (std::uint64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      head_case one;
      one.data = "dump:" + name_ + ":layer" + std::to_string(layer);
      one.layer = layer;
      one.kv_head = static_cast<std::uint32_t>(kv_head);
      one.heads = static_cast<std::uint32_t>(group);
      one.head_dim = static_cast<std::uint32_t>(dim);
      one.element = element;
      one.keys = read(k, kv_head * k->shape[1], k->shape[1]);
      one.values = read(v, kv_head * k->shape[1], k->shape[1]);
      for (std::size_t i = 0; i < positions.size(); ++i) {
        head_query query{{}, positions[i] + 1, positions[i]};
        for (std::uint64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          const std::vector<float> row = read(q, head * positions.size() + i, 1);
          query.values.insert(query.values.end(), row.begin(), row.end());
        }
        one.queries.push_back(std::move(query));
      }
      made.push_back(std::move(one));
    }
    return made;
  }

  [[noreturn]] void fail_layer(std::uint32_t layer, const std::set<std::uint32_t>& layers) const {
    std::string names;
    for (const std::uint32_t each : layers) {
      names += (names.empty() ? "" : ", ") + std::to_string(each);
    }
    throw model_error(file_.path().string() + ": layer " + std::to_string(layer) +
                      " is not in this dump; use one of " + names);
  }

 private:
  struct named {
    std::string name;
    const tensor_view* tensor;
    const tensor_view* operator->() const { return tensor; }
  };

  [[noreturn]] void fail(const std::string& name, const std::string& complaint) const {
    throw model_error(file_.path().string() + ": tensor " + name + ": " + complaint);
  }
  [[noreturn]] void fail(const named& what, const std::string& complaint) const {
    fail(what.name, "is " + what->dtype + " " + decoder::to_string(what->shape) + "; " + complaint);
  }

  named find(const std::string& name) const {
    const auto found = file_.tensors().find(name);
    if (found == file_.tensors().end()) {
      fail(name, "missing; each dumped layer has .k, .v, .q and .q_positions");
    }
    return {name, &found->second};
  }
  void require_rank(const named& what, const std::string& shape) const {
    if (what->shape.size() != 3 ||
        std::find(what->shape.begin(), what->shape.end(), 0u) != what->shape.end()) {
      fail(what, "expected " + shape + ", none of them 0");
    }
  }
  element_type element_of(const named& what) const {
    if (what->dtype == "BF16") {
      return element_type::bf16;
    }
    if (what->dtype == "F16") {
      return element_type::fp16;
    }
    if (what->dtype != "F32") {
      fail(what, "expected F32, F16 or BF16");
    }
    return element_type::fp32;
  }
  /// `count` rows of head_dim from row `first` of the tensor seen as [rows][head_dim].
  std::vector<float> read(const named& what, std::uint64_t first, std::uint64_t count) const {
    const element_type element = element_of(what);
    const std::uint64_t dim = what->shape[2];
    std::vector<float> made(count * dim);
    to_float(element, what->data.data() + first * dim * element_bytes(element), made.data(),
             made.size());
    return made;
  }
  std::vector<std::uint64_t> read_positions(const std::string& name, std::uint64_t queries,
                                            std::uint64_t tokens) const {
    const named what = find(name);
    if (what->dtype != "I64" || what->shape != std::vector<std::uint64_t>{queries}) {
      fail(what, "expected I64 [" + std::to_string(queries) + "]");
    }
    std::vector<std::uint64_t> made(queries);
    std::memcpy(made.data(), what->data.data(), queries * sizeof(std::uint64_t));
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (made[i] >= tokens || (i > 0 && made[i] <= made[i - 1])) {
        fail(what, "position " + std::to_string(static_cast<std::int64_t>(made[i])) + " at " +
                       std::to_string(i) + "; expected ascending positions below " +
                       std::to_string(tokens));
      }
    }
    return made;
  }

  decoder::safetensors_file file_;
  std::string name_;
};

}  // namespace

std::vector<head_case> load_dump(const std::filesystem::path& file,
                                 std::optional<std::uint32_t> layer) {
  const dump_reader reader(file);
  const std::set<std::uint32_t> layers = reader.layers();
  if (layer && !layers.contains(*layer)) {
    reader.fail_layer(*layer, layers);
  }
  std::vector<head_case> made;
  for (const std::uint32_t each : layers) {
    if (!layer || each == *layer) {
      for (head_case& one : reader.load(each)) {
        made.push_back(std::move(one));
      }
    }
  }
  return made;
}

}  // namespace kvtier::eval
