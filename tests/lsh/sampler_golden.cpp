#include "tests/lsh/sampler_golden.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cpu/element.hpp"

namespace kvtier::lsh::golden {
namespace {

using nlohmann::json;

std::uint32_t sextet(char c) {
  constexpr std::string_view alphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto at = alphabet.find(c);
  if (at == std::string_view::npos) {
    throw std::invalid_argument(std::string("'") + c + "' is not base64");
  }
  return static_cast<std::uint32_t>(at);
}

std::vector<std::uint8_t> decoded(std::string_view text) {
  while (!text.empty() && text.back() == '=') {
    text.remove_suffix(1);
  }
  std::vector<std::uint8_t> bytes;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    bits = bits << 6 | sextet(c);
    held += 6;
    if (held >= 8) {
      held -= 8;
      bytes.push_back(static_cast<std::uint8_t>(bits >> held));
    }
  }
  return bytes;
}

/// An array of the file: base64 of little-endian values, which every supported machine uses.
template <class Value> std::vector<Value> array(const json& from, const char* name) {
  const auto bytes = decoded(from.at(name).get_ref<const std::string&>());
  if (bytes.size() % sizeof(Value) != 0) {
    throw std::invalid_argument(std::string(name) + ": not a whole number of values");
  }
  std::vector<Value> values(bytes.size() / sizeof(Value));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

template <class Value> void read(const json& from, const char* name, Value& to) {
  to = from.at(name).get<Value>();
}

std::uint64_t decimal(const json& text) { return std::stoull(text.get<std::string>()); }

/// C's %a text; the values are exact in fp32.
float hexadecimal(const json& text) {
  return std::strtof(text.get<std::string>().c_str(), nullptr);
}

index_vectors read_index(const json& from) {
  index_vectors index;
  read(from, "bits", index.bits);
  read(from, "em", index.em);
  index.planes = array<std::uint8_t>(from, "planes");
  index.mu8 = array<std::int8_t>(from, "mu8");
  index.f8 = array<std::uint8_t>(from, "f8");
  index.fs = array<float>(from, "fs");
  index.vb8 = array<std::int8_t>(from, "vb8");
  index.vs = array<float>(from, "vs");
  index.s16 = array<std::int16_t>(from, "s16");
  index.tau4 = array<std::uint8_t>(from, "tau4");
  return index;
}

void read_plan(const json& from, sample_case& to) {
  read(from, "name", to.name);
  read(from, "bits", to.bits);
  read(from, "mode", to.mode);
  read(from, "whole", to.whole);
  read(from, "ppm", to.ppm);
  to.seed = decimal(from.at("seed"));
  read(from, "step", to.step);
  read(from, "T", to.T);
  read(from, "m_r", to.m_r);
  read(from, "t", to.t);
  read(from, "J", to.J);
  read(from, "smax", to.smax);
  to.D_g = array<double>(from, "D_g");
  to.kg = array<double>(from, "kg");
  read(from, "tile_thr", to.tile_thr);
  to.u = array<std::uint16_t>(from, "u");
  read(from, "tile_u", to.tile_u);
  read(from, "ids", to.ids);
  read(from, "thr_rows", to.thr_rows);
  read(from, "tiles", to.tiles);
}

void read_sums(const json& from, sample_case& to) {
  to.N0 = array<double>(from, "N0");
  to.C = array<double>(from, "C");
  to.A = array<double>(from, "A");
  to.o = array<double>(from, "o");
  read(from, "lse", to.lse);
  read(from, "beta", to.beta);
  read(from, "bound", to.bound);
  read(from, "n", to.n);
  read(from, "audited", to.audited);
  read(from, "ref", to.ref);
  read(from, "D0", to.D0);
  read(from, "Cd", to.Cd);
  read(from, "SX", to.SX);
  read(from, "SX2", to.SX2);
  read(from, "SE", to.SE);
  read(from, "QX", to.QX);
  read(from, "QE", to.QE);
  read(from, "kx", to.kx);
}

context_set read_set(const json& from) {
  context_set set;
  read(from, "D", set.D);
  read(from, "nb", set.nb);
  read(from, "G", set.G);
  set.K = array<std::uint16_t>(from, "K");
  set.V = array<std::uint16_t>(from, "V");
  set.Q = array<std::uint16_t>(from, "Q");
  read(from, "win64", set.win64);
  set.dev_o = array<double>(from, "dev_o");
  set.exact_o = array<double>(from, "exact_o");
  read(from, "dev_lse", set.dev_lse);
  read(from, "tile", set.tile);
  for (const json& sequence : from.at("seq")) {
    set.seq.push_back(decimal(sequence));
  }
  read(from, "layer", set.layer);
  read(from, "kv_head", set.kv_head);
  for (const json& index : from.at("index")) {
    set.index.push_back(read_index(index));
  }
  for (const json& one : from.at("cases")) {
    sample_case& added = set.cases.emplace_back();
    read_plan(one, added);
    read_sums(one, added);
  }
  return set;
}

std::uint32_t number(const std::string& text) {
  return static_cast<std::uint32_t>(std::stoul(text));
}

sampler_vectors read_file() {
  // Tests that were packed for another machine find the tree's files where this says.
  const char* const moved = std::getenv("KVTIER_SOURCE_DIR");
  const std::string path = std::string(moved != nullptr ? moved : KVTIER_SOURCE_DIR) +
                           "/tests/golden/sampler/sampler_golden.json";
  std::ifstream file(path);
  if (!file) {
    throw std::runtime_error(path + ": cannot be read");
  }
  const json from = json::parse(file);
  sampler_vectors all;
  read(from, "rotseed", all.rotation_seed);
  const json& tables = from.at("tables");
  all.expb = array<double>(tables, "EXPB");
  all.expg_shrink = array<double>(tables, "EXPG_shrink");
  all.p32 = array<double>(tables, "P32");
  for (const json& value : tables.at("EXPI")) {
    all.expi.push_back(static_cast<std::int64_t>(decimal(value)));
  }
  for (const auto& [dim, value] : tables.at("A_Q").items()) {
    all.a_q[number(dim)] = hexadecimal(value);
  }
  for (const auto& [bits, by_dim] : tables.at("U_Q").items()) {
    for (const auto& [dim, value] : by_dim.items()) {
      all.u_q[number(bits)][number(dim)] = hexadecimal(value);
    }
  }
  for (const json& set : from.at("sets")) {
    all.sets.push_back(read_set(set));
  }
  return all;
}

}  // namespace

const index_vectors& context_set::index_of(std::uint32_t bits) const {
  const auto found = std::find_if(index.begin(), index.end(),
                                  [bits](const index_vectors& one) { return one.bits == bits; });
  if (found == index.end()) {
    throw std::out_of_range("no golden index of " + std::to_string(bits) + " bits");
  }
  return *found;
}

const sampler_vectors& vectors() {
  static const sampler_vectors all = read_file();
  return all;
}

std::vector<float> widened(const std::vector<std::uint16_t>& values) {
  std::vector<float> wide(values.size());
  std::transform(values.begin(), values.end(), wide.begin(), float_from_bf16);
  return wide;
}

}  // namespace kvtier::lsh::golden
