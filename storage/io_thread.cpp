#include "storage/io_thread.hpp"

#include <pthread.h>

#include <csignal>
#include <utility>

namespace kvtier::storage {

std::thread start_io_thread(const std::string& name, std::function<void()> body) {
  // A new thread inherits the mask, so there is no moment at which it could take a signal.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread started;
  try {
    started = std::thread(std::move(body));
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(started.native_handle(), name.substr(0, 15).c_str());
  return started;
}

}  // namespace kvtier::storage
