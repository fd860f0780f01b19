#include "tools/run/interrupt.hpp"

#include <csignal>

#include <atomic>

namespace kvtier::run {
namespace {

// Signal handlers reach nothing but globals.
std::atomic<int> caught_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void remember_signal(int number) { caught_signal = number; }

void set_handler(int number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, nullptr);
}

}  // namespace

interrupt_guard::interrupt_guard() {
  caught_signal = 0;
  set_handler(SIGINT, remember_signal);
  set_handler(SIGTERM, remember_signal);
}

interrupt_guard::~interrupt_guard() {
  set_handler(SIGINT, SIG_DFL);
  set_handler(SIGTERM, SIG_DFL);
}

int interrupt_guard::caught() const noexcept { return caught_signal; }

}  // namespace kvtier::run
