/// What `kvtier eval --data` names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tools/eval/head_case.hpp"

namespace kvtier::eval {

struct data_request {
  std::uint64_t tokens =
      16384;  ///< synthetic: beside the window; models: of the text; dumps: unused
  std::uint32_t head_dim = 128;  ///< synthetic
  std::uint64_t seed = 0;        ///< synthetic: of the first instance; needle: of the text
  std::uint32_t cases = 1;       ///< synthetic: instances of a kind, seeds ascending
  std::uint32_t queries = 16;    ///< models: query positions (needle: questions)
  element_type element = element_type::bf16;  ///< models: of the KV cache
  std::filesystem::path text;        ///< models but needle; empty = text.txt in the model's folder
  std::filesystem::path model_data;  ///< holds needle/ and trained/; empty = found, see below
  std::uint32_t threads = 0;         ///< models; 0 = what the process may use
};

/// The folder of needle/ and trained/: `given`, or if it is empty tests/data of the source tree
/// that the program was built from.
std::filesystem::path model_root(const std::filesystem::path& given);
/// What needles are hidden in: the file `text`, or if none is given the trained model's text under
/// model_root(models); empty if there is no such file. Throws std::invalid_argument for a `text`
/// that holds nothing.
std::string needle_prose(const std::filesystem::path& models, const std::filesystem::path& text);

/// The cases of one --data item:
///
///     synthetic:KIND[+drift=STEPS]  `cases` instances; with drift, STEPS successive queries each
///     synthetic:KIND[+sd=X]         logits of standard deviation X, whatever the kind's
///     synthetic:all[...]            the same of each of sampler_kinds()
///     needle[:layerL]               the needle model, asked for facts in a text
///     trained[:layerL]              the small trained model over its own text
///     model:DIR[:layerL]            any model folder over `text`
///     dump:FILE[:layerL]            a file of tools/python/dump_qkv.py, with its own queries
///
/// Models and dumps give a case per full-attention layer (or the one of :layerL) and KV head.
/// An empty `model_data` stands for tests/data of the source tree that the program was built from.
/// Throws std::invalid_argument or decoder::model_error, one line that names the item, the value at
/// fault and the remedy.
std::vector<head_case> load_cases(std::string_view item, const data_request& request);

}  // namespace kvtier::eval
