#include "tools/decoder/tensor_source.hpp"

#include <algorithm>

#include "tools/decoder/json_document.hpp"

namespace kvtier::decoder {
namespace {

constexpr const char* single_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";

bool is_sharded(const std::filesystem::path& folder) {
  std::error_code failure;
  return !std::filesystem::exists(folder / single_name, failure) &&
         std::filesystem::exists(folder / index_name, failure);
}

/// The files that an index names, beside it.
std::set<std::string> shard_names(const std::filesystem::path& index) {
  const json_document document = json_document::load(index);
  const json_value map = document.root().at("weight_map");
  map.require_object();
  std::set<std::string> names;
  for (const auto& [tensor, unused] : map.raw().items()) {
    const json_value file = map.at(tensor);
    const std::filesystem::path name = file.string();
    // The index comes from a download: it must not reach files elsewhere.
    if (name.empty() || name != name.filename() || name == "." || name == "..") {
      file.fail("a file name without folders is expected");
    }
    names.insert(name.string());
  }
  return names;
}

}  // namespace

std::vector<std::filesystem::path> model_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const char* const name : {"config.json", "tokenizer.json", single_name, index_name}) {
    files.push_back(folder / name);
  }
  if (is_sharded(folder)) {
    for (const std::string& name : shard_names(folder / index_name)) {
      files.push_back(folder / name);
    }
  }
  return files;
}

tensor_source::tensor_source(const std::filesystem::path& folder) {
  if (is_sharded(folder)) {
    const auto index = folder / index_name;
    description_ = index.string();
    open_shards(index);
    return;
  }
  const auto single = folder / single_name;
  description_ = single.string();
  std::error_code failure;
  if (!std::filesystem::exists(single, failure)) {
    throw model_error(description_ +
                      " is missing and so is model.safetensors.index.json; weights in other "
                      "formats are not read, save the model as safetensors");
  }
  files_.emplace_back(single);
}

void tensor_source::open_shards(const std::filesystem::path& index) {
  const std::set<std::string> names = shard_names(index);
  files_.reserve(names.size());
  for (const std::string& name : names) {
    files_.emplace_back(index.parent_path() / name);
  }
}

const tensor_view* tensor_source::find(const std::string& name) const {
  for (const safetensors_file& file : files_) {
    const auto found = file.tensors().find(name);
    if (found != file.tensors().end()) {
      return &found->second;
    }
  }
  return nullptr;
}

weight_view tensor_source::weight(const std::string& name,
                                  std::initializer_list<std::uint64_t> shape) {
  const tensor_view* tensor = find(name);
  const std::string place = description_ + ": tensor " + name;
  if (tensor == nullptr) {
    throw model_error(place +
                      " is missing; config.json asks for it, see that both belong together");
  }
  const std::vector<std::uint64_t> expected(shape);
  if (tensor->shape != expected) {
    throw model_error(place + " has shape " + to_string(tensor->shape) +
                      " where config.json asks for " + to_string(expected) +
                      "; see that both belong together");
  }
  weight_view view;
  if (tensor->dtype == "BF16") {
    view.element = element_type::bf16;
  } else if (tensor->dtype == "F16") {
    view.element = element_type::fp16;
  } else if (tensor->dtype != "F32") {
    throw model_error(place + " has type " + tensor->dtype +
                      ", which is not supported; save the model in bf16, fp16 or fp32");
  }
  view.data = tensor->data.data();
  view.count = tensor->data.size() / element_bytes(view.element);
  used_.insert(name);
  return view;
}

std::string tensor_source::unused(std::string_view prefix) const {
  for (const safetensors_file& file : files_) {
    for (auto named = file.tensors().lower_bound(prefix);
         named != file.tensors().end() && named->first.starts_with(prefix); ++named) {
      if (!used_.contains(named->first)) {
        return named->first;
      }
    }
  }
  return {};
}

}  // namespace kvtier::decoder
