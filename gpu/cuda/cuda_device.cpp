#include "gpu/cuda/cuda_device.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "gpu/cuda/argument_checks.hpp"
#include "gpu/cuda/cuda_device_impl.hpp"
#include "gpu/cuda/cuda_probe.hpp"
#include "gpu/cuda/kernels.hpp"

namespace kvtier::gpu {
namespace {

/// Asynchronous copies to shared memory and the matrix instructions.
constexpr int oldest_major = 8;

}  // namespace

cuda_device::cuda_device(const device_options& options)
    : context_(std::make_shared<cuda_context>(options.cuda_ordinal)),
      ledger_(options.kv_cap_bytes) {
  const device_guard guard(*context_);
  read_properties();
  if (options.kv_cap_bytes > info_.memory_bytes) {
    throw out_of_memory("a KV cap of " + std::to_string(options.kv_cap_bytes) +
                            " bytes is more than the " + std::to_string(info_.memory_bytes) +
                            " bytes of " + info_.name,
                        options.kv_cap_bytes, info_.memory_bytes);
  }
  prepare_kernels();
  pool_ = std::make_unique<device_pool>(*context_);
  staging_ = std::make_unique<staging>(*context_);
  completions_ = std::make_unique<cuda_completions>(*context_, options.observer);
  queue_ = std::make_unique<completion_queue>(*completions_);
}

cuda_device::~cuda_device() {
  queue_.reset();
  registered_.clear([this](std::byte* base) {
    const quiet_device_guard guard(*context_);
    if (guard) {
      (void)context_->check_quietly(cudaHostUnregister(base), "cudaHostUnregister");
    }
  });
}

void cuda_device::read_properties() {
  cudaDeviceProp properties = {};
  context_->check(cudaGetDeviceProperties(&properties, context_->ordinal()),
                  "cudaGetDeviceProperties");
  info_.name = static_cast<const char*>(properties.name);
  info_.backend = "cuda";
  info_.memory_bytes = properties.totalGlobalMem;
  info_.compute_units = static_cast<std::uint32_t>(properties.multiProcessorCount);
  if (properties.major < oldest_major) {
    throw device_error(info_.name + " has compute capability " + std::to_string(properties.major) +
                       "." + std::to_string(properties.minor) + "; kvtier needs 8.0 or later");
  }
  int pools = 0;
  context_->check(
      cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, context_->ordinal()),
      "cudaDeviceGetAttribute");
  if (pools == 0) {
    throw device_error(info_.name + " has no stream-ordered memory pools, which kvtier needs");
  }
}

void cuda_device::prepare_kernels() {
  context_->check(kernels::prepare_decode(), "preparing the decode kernels");
  context_->check(kernels::prepare_prefill(), "preparing the prefill kernels");
  for (std::size_t i = 0; i < decode_slots_.size(); ++i) {
    int ctas = 0;
    context_->check(kernels::decode_occupancy(i < 2 ? element_type::bf16 : element_type::fp16,
                                              i % 2 == 0 ? 64 : 128, &ctas),
                    "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    decode_slots_[i] = std::max(1u, static_cast<std::uint32_t>(ctas) * info_.compute_units);
  }
}

std::uint32_t cuda_device::decode_slots(const attention_shape& shape) const {
  const std::size_t element = shape.element == element_type::bf16 ? 0 : 2;
  return decode_slots_[element + (shape.head_dim == 64 ? 0 : 1)];
}

cuda_stream& cuda_device::own(stream& order) const {
  auto* mine = dynamic_cast<cuda_stream*>(&order);
  if (mine == nullptr || !mine->belongs_to(*context_)) {
    refuse("stream '" + std::string(order.name()) + "' is another device's");
  }
  return *mine;
}

cuda_event& cuda_device::own(event& point) const {
  auto* mine = dynamic_cast<cuda_event*>(&point);
  if (mine == nullptr || !mine->belongs_to(*context_)) {
    refuse("the event is another device's");
  }
  return *mine;
}

std::unique_ptr<stream> cuda_device::make_stream(std::string name) {
  const device_guard guard(*context_);
  auto lane = queue_->open_lane(std::move(name));
  cudaStream_t handle = nullptr;
  context_->check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking),
                  "cudaStreamCreateWithFlags");
  return std::make_unique<cuda_stream>(context_, std::move(lane), handle, false);
}

std::unique_ptr<stream> cuda_device::wrap_stream(void* native, std::string name) {
  context_->require_alive();
  auto lane = queue_->open_lane(std::move(name));
  return std::make_unique<cuda_stream>(context_, std::move(lane), static_cast<cudaStream_t>(native),
                                       true);
}

std::unique_ptr<event> cuda_device::make_event() { return std::make_unique<cuda_event>(context_); }

void cuda_device::record(event& point, stream& order) {
  const cuda_stream& from = own(order);
  const cuda_event& mark = own(point);
  const device_guard guard(*context_);
  from.refuse_capture();
  context_->check(cudaEventRecord(mark.handle(), from.handle()), "cudaEventRecord");
}

void cuda_device::wait(stream& order, const event& point) {
  const cuda_stream& waiting = own(order);
  const cuda_event& mark = own(const_cast<event&>(point));  // only its type is asked for
  const device_guard guard(*context_);
  waiting.refuse_capture();
  context_->check(cudaStreamWaitEvent(waiting.handle(), mark.handle(), cudaEventWaitDefault),
                  "cudaStreamWaitEvent");
}

void cuda_device::notify(stream& order, std::function<void()> done) {
  if (!done) {
    refuse("notify without a function to call");
  }
  const cuda_stream& from = own(order);
  const device_guard guard(*context_);
  from.refuse_capture();
  pooled_event point(completions_->points());
  context_->check(cudaEventRecord(point.get(), from.handle()), "cudaEventRecord");
  queue_->push(from.lane(), {.end = point.get(), .operation = "notify", .done = std::move(done)});
  (void)point.release();
}

device_buffer cuda_device::allocate(std::size_t bytes, memory_use use, stream& order) {
  const cuda_stream& from = own(order);
  const device_guard guard(*context_);
  from.refuse_capture();
  if (bytes == 0) {
    return {};
  }
  ledger_.take(bytes, use);
  try {
    return {*this, order, pool_->allocate(bytes, from.handle()), bytes, use};
  } catch (...) {
    ledger_.give_back(bytes, use);
    throw;
  }
}

void cuda_device::deallocate(std::byte* data, std::size_t bytes, memory_use use,
                             stream& order) noexcept {
  pool_->free(data, static_cast<cuda_stream&>(order).handle());
  ledger_.give_back(bytes, use);
}

bool cuda_device::register_host(std::span<std::byte> memory) {
  const device_guard guard(*context_);
  const auto unlock = [this](std::byte* base) {
    (void)context_->check_quietly(cudaHostUnregister(base), "cudaHostUnregister");
  };
  const auto lock = [this](std::byte* base, std::size_t bytes) {
    return context_->check_quietly(
        cudaHostRegister(base, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
        "cudaHostRegister");
  };
  const bool all = registered_.add(memory, lock, unlock);
  context_->require_alive();
  return all;
}

void cuda_device::unregister_host(std::span<std::byte> memory) noexcept {
  const quiet_device_guard guard(*context_);
  registered_.remove(memory, [&](std::byte* base) {
    if (guard && !context_->lost()) {
      (void)context_->check_quietly(cudaHostUnregister(base), "cudaHostUnregister");
    }
  });
}

void cuda_device::enqueue(stream& order, const char* operation, std::uint64_t bytes,
                          const std::function<void(cudaStream_t)>& work) {
  const cuda_stream& to = own(order);
  const device_guard guard(*context_);
  to.refuse_capture();
  context_->note_operation(operation);
  if (!completions_->observed()) {
    work(to.handle());
    return;
  }
  pooled_event begin(completions_->stamps());
  pooled_event end(completions_->stamps());
  context_->check(cudaEventRecord(begin.get(), to.handle()), "cudaEventRecord");
  work(to.handle());
  context_->check(cudaEventRecord(end.get(), to.handle()), "cudaEventRecord");
  queue_->push(
      to.lane(),
      {.begin = begin.get(), .end = end.get(), .operation = operation, .bytes = bytes, .done = {}});
  (void)begin.release();
  (void)end.release();
}

std::unique_ptr<device> make_cuda_device(const device_options& options) {
  std::string why;
  if (!probe_cuda(&why)) {
    throw device_error("no CUDA device: " + why + "; use the host device instead");
  }
  if (options.cuda_ordinal < 0 || options.cuda_ordinal >= cuda_probe().devices) {
    refuse("there is no GPU " + std::to_string(options.cuda_ordinal) + "; this machine has " +
           std::to_string(cuda_probe().devices) + ", counted from 0");
  }
  return std::make_unique<cuda_device>(options);
}

}  // namespace kvtier::gpu
