/// Prints the instruction-set levels that this build contains and this CPU runs, one per line,
/// lowest first: the values that KVTIER_ISA may have.
#include <iostream>

#include "cpu/isa.hpp"

int main() {
  for (const auto level : kvtier::cpu::available_isa_levels()) {
    std::cout << kvtier::cpu::to_string(level) << '\n';
  }
}
