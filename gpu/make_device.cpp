#include "gpu/make_device.hpp"

#include <string>

#include "gpu/error.hpp"
#include "gpu/host_device/host_device.hpp"

#ifdef KVTIER_WITH_CUDA
#include "gpu/cuda/cuda_device.hpp"
#endif

namespace kvtier::gpu {
namespace {

#ifdef KVTIER_WITH_CUDA
struct cuda_probe {
  std::string missing;
  bool available = probe_cuda(&missing);
};

bool probe(std::string* why) {
  static const cuda_probe once;
  if (!once.available && why != nullptr) {
    *why = once.missing;
  }
  return once.available;
}

std::unique_ptr<device> open_cuda(const device_options& options) {
  return make_cuda_device(options);
}
#else
bool probe(std::string* why) {
  if (why != nullptr) {
    *why = "this build has no CUDA backend (configure with KVTIER_CUDA=ON where nvcc is installed)";
  }
  return false;
}

std::unique_ptr<device> open_cuda(const device_options& /*options*/) {
  throw device_error("no CUDA backend in this build");
}
#endif

}  // namespace

bool cuda_available(std::string* why) { return probe(why); }

std::unique_ptr<device> make_device(const device_options& options) {
  if (options.kind != device_kind::host) {
    std::string why;
    if (cuda_available(&why)) {
      return open_cuda(options);
    }
    if (options.kind == device_kind::cuda) {
      throw device_error("device 'cuda' cannot be opened: " + why +
                         "; use the host device, or let kvtier choose");
    }
  }
  return make_host_device(options.kv_cap_bytes, options.observer, options.host);
}

}  // namespace kvtier::gpu
