#include "gpu/host_device/device_context.hpp"

#include <utility>

#include "cpu/topology.hpp"

namespace kvtier::gpu {
namespace {

std::unique_ptr<cpu::task_arena> make_arena(std::uint32_t threads) {
  if (threads == 0) {
    threads = cpu::detect_topology().usable_threads();
  }
  if (threads == 1) {
    return nullptr;
  }
  return std::make_unique<cpu::task_arena>(
      cpu::task_arena_options{.threads = threads, .cpus = {}, .thread_name = "kvt-device"});
}

}  // namespace

device_context::device_context(std::uint64_t kv_cap_bytes, std::uint64_t total_bytes,
                               op_observer observer_, const host_device_options& options_)
    : options(options_),
      observer(std::move(observer_)),
      memory(kv_cap_bytes, total_bytes),
      to_device(options_.copy_bytes_per_second),
      to_host(options_.copy_bytes_per_second),
      arena(make_arena(options_.threads)) {}

void device_context::parallel_for(std::size_t count, const std::function<void(std::size_t)>& body) {
  if (arena != nullptr && count > 1) {
    arena->parallel_for(count, body);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    body(i);
  }
}

}  // namespace kvtier::gpu
