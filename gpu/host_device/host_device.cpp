#include "gpu/host_device/host_device.hpp"

#include <unistd.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "gpu/host_device/append_operation.hpp"
#include "gpu/host_device/arguments.hpp"
#include "gpu/host_device/attend_operation.hpp"
#include "gpu/host_device/copy_operation.hpp"
#include "gpu/host_device/device_context.hpp"
#include "gpu/host_device/host_event.hpp"
#include "gpu/host_device/host_stream.hpp"
#include "gpu/host_device/merge_operation.hpp"

namespace kvtier::gpu {
namespace {

std::uint64_t physical_memory_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGE_SIZE));
}

class host_device final : public device {
 public:
  host_device(std::uint64_t kv_cap_bytes, op_observer observer, const host_device_options& options)
      : context_(std::make_shared<device_context>(kv_cap_bytes, physical_memory_bytes(),
                                                  std::move(observer), options)),
        info_{"host", "host", physical_memory_bytes(),
              context_->arena != nullptr ? context_->arena->threads() : 1} {}

  const device_info& info() const noexcept override { return info_; }
  device_memory_counters memory() const override { return context_->memory.counters(); }

  std::unique_ptr<stream> make_stream(std::string name) override;
  std::unique_ptr<stream> wrap_stream(void* native, std::string name) override;
  std::unique_ptr<event> make_event() override;

  void record(event& point, stream& order) override;
  void wait(stream& order, const event& point) override;
  void notify(stream& order, std::function<void()> done) override;

  device_buffer allocate(std::size_t bytes, memory_use use, stream& order) override;
  bool register_host(std::span<std::byte> memory) override;
  void unregister_host(std::span<std::byte> memory) noexcept override;

  void copy(void* to, const void* from, std::size_t bytes, copy_kind kind, stream& order) override;
  void append(const append_args& args, stream& order) override;
  void attend(const attend_args& args, stream& order) override;
  void merge(const merge_args& args, stream& order) override;

 private:
  void deallocate(std::byte* data, std::size_t bytes, memory_use use,
                  stream& order) noexcept override;

  /// Checks that the device is alive and the stream its own.
  host_stream& own(stream& order, const char* call) const;

  const std::shared_ptr<device_context> context_;
  const device_info info_;
};

host_stream& host_device::own(stream& order, const char* call) const {
  context_->status->require_alive(call);
  auto* own_stream = dynamic_cast<host_stream*>(&order);
  if (own_stream == nullptr || &own_stream->context() != context_.get()) {
    throw std::invalid_argument(std::string(call) + ": stream '" + std::string(order.name()) +
                                "' belongs to another device");
  }
  return *own_stream;
}

/// `Event` is event or const event; checks that it is one of this device's.
template <class HostEvent, class Event>
HostEvent& own_event(Event& candidate, const device_status& status, const char* call) {
  auto* own_event = dynamic_cast<HostEvent*>(&candidate);
  if (own_event == nullptr || &own_event->status() != &status) {
    throw std::invalid_argument(std::string(call) + ": the event belongs to another device");
  }
  return *own_event;
}

std::unique_ptr<stream> host_device::make_stream(std::string name) {
  context_->status->require_alive("make_stream");
  return std::make_unique<host_stream>(context_, std::move(name));
}

std::unique_ptr<stream> host_device::wrap_stream(void* /*native*/, std::string name) {
  throw std::invalid_argument("wrap_stream: the host device has no native streams to wrap as '" +
                              name + "'; use make_stream");
}

std::unique_ptr<event> host_device::make_event() {
  context_->status->require_alive("make_event");
  return std::make_unique<host_event>(context_->status);
}

void host_device::record(event& point, stream& order) {
  host_stream& own_stream = own(order, "record");
  own_event<host_event>(point, *context_->status, "record").record(own_stream.mark());
}

void host_device::wait(stream& order, const event& point) {
  host_stream& own_stream = own(order, "wait");
  shared_point recorded = own_event<const host_event>(point, *context_->status, "wait").latest();
  if (recorded != nullptr) {
    own_stream.enqueue_control([recorded = std::move(recorded)] { recorded->wait(); });
  }
}

void host_device::notify(stream& order, std::function<void()> done) {
  host_stream& own_stream = own(order, "notify");
  if (!done) {
    throw std::invalid_argument("notify: done is empty");
  }
  own_stream.enqueue_control(
      [&completions = context_->completions, done = std::move(done)]() mutable {
        completions.post(std::move(done));
      });
}

device_buffer host_device::allocate(std::size_t bytes, memory_use use, stream& order) {
  host_stream& own_stream = own(order, "allocate");
  if (bytes == 0) {
    return {};
  }
  const device_memory::grant given = context_->memory.allocate(bytes, use, order);
  device_buffer buffer(*this, order, given.data, bytes, use);
  for (const shared_point& earlier_owner : given.after) {
    own_stream.enqueue_control([earlier_owner] { earlier_owner->wait(); });
  }
  own_stream.enqueue_control(
      [context = context_, data = given.data, bytes] { context->poison(data, bytes); });
  return buffer;
}

void host_device::deallocate(std::byte* data, std::size_t bytes, memory_use use,
                             stream& order) noexcept {
  auto& own_stream = static_cast<host_stream&>(order);
  if (use == memory_use::activation) {
    const std::shared_ptr<std::byte> owned = context_->memory.retire(data, order, nullptr);
    own_stream.enqueue_control(
        [context = context_, owned, bytes] { context->poison(owned.get(), bytes); });
    return;
  }
  // It enters the free list after its poison is enqueued, so that the next owner on this stream
  // comes behind it.
  auto freed = std::make_shared<point>();
  own_stream.enqueue_control([context = context_, data, bytes, freed] {
    context->poison(data, bytes);
    freed->reach();
  });
  context_->memory.retire(data, order, std::move(freed));
}

bool host_device::register_host(std::span<std::byte> memory) {
  context_->status->require_alive("register_host");
  device_memory::checker(context_->memory, "register_host")
      .host_range(memory.data(), memory.size(), "memory");
  return true;
}

void host_device::unregister_host(std::span<std::byte> /*memory*/) noexcept {}

void host_device::copy(void* to, const void* from, std::size_t bytes, copy_kind kind,
                       stream& order) {
  host_stream& own_stream = own(order, "copy");
  if (bytes == 0) {
    return;
  }
  check_copy(context_->memory, to, from, bytes, kind);
  own_stream.enqueue(make_copy(*context_, static_cast<std::byte*>(to),
                               static_cast<const std::byte*>(from), bytes, kind));
}

void host_device::append(const append_args& args, stream& order) {
  host_stream& own_stream = own(order, "append");
  check_append(context_->memory, args);
  own_stream.enqueue(make_append(*context_, args));
}

void host_device::attend(const attend_args& args, stream& order) {
  host_stream& own_stream = own(order, "attend");
  check_attend(context_->memory, args);
  own_stream.enqueue(make_attend(*context_, args));
}

void host_device::merge(const merge_args& args, stream& order) {
  host_stream& own_stream = own(order, "merge");
  check_merge(context_->memory, args);
  if (args.rows > 0) {
    own_stream.enqueue(make_merge(*context_, args));
  }
}

}  // namespace

std::unique_ptr<device> make_host_device(std::uint64_t kv_cap_bytes, op_observer observer,
                                         const host_device_options& options) {
  return std::make_unique<host_device>(kv_cap_bytes, std::move(observer), options);
}

}  // namespace kvtier::gpu
