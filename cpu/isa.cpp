#include "cpu/isa.hpp"

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace kvtier::cpu {

namespace {

constexpr std::array known_levels = {isa_level::scalar, isa_level::avx512_bf16};

bool cpu_runs_avx512_bf16() {
#ifdef KVTIER_HAVE_AVX512_BF16
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bitalg") &&
         __builtin_cpu_supports("gfni");
#else
  return false;
#endif
}

std::string list_of_available() {
  std::string text;
  for (const isa_level level : available_isa_levels()) {
    text += (text.empty() ? "" : ", ") + std::string(to_string(level));
  }
  return text;
}

}  // namespace

std::string_view to_string(isa_level level) noexcept {
  switch (level) {
    case isa_level::scalar:
      return "scalar";
    case isa_level::avx512_bf16:
      return "avx512_bf16";
  }
  return "?";
}

const std::vector<isa_level>& available_isa_levels() {
  static const std::vector<isa_level> levels = [] {
    std::vector<isa_level> found = {isa_level::scalar};
    if (cpu_runs_avx512_bf16()) {
      found.push_back(isa_level::avx512_bf16);
    }
    return found;
  }();
  return levels;
}

isa_level choose_isa(const char* requested) {
  if (requested == nullptr || *requested == '\0') {
    return available_isa_levels().back();
  }
  for (const isa_level level : available_isa_levels()) {
    if (to_string(level) == requested) {
      return level;
    }
  }
  bool known = false;
  for (const isa_level level : known_levels) {
    known = known || to_string(level) == requested;
  }
  throw std::invalid_argument(
      "KVTIER_ISA=" + std::string(requested) +
      (known ? ": this build or CPU does not have this level" : ": unknown instruction set level") +
      "; available: " + list_of_available() + "; unset the variable to use the best of them");
}

isa_level active_isa() {
  static const isa_level level = choose_isa(std::getenv("KVTIER_ISA"));
  return level;
}

}  // namespace kvtier::cpu
