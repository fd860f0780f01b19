/// A piece of device work as a host stream runs it.
#pragma once

#include <cstdint>

namespace kvtier::gpu {

/// Runs in two parts so that what a GPU does over time can be told apart: between start and finish
/// the destinations hold poison.
class operation {
 public:
  virtual ~operation() = default;

  virtual const char* name() const noexcept = 0;  ///< a literal, for op_record
  virtual std::uint64_t bytes() const noexcept = 0;

  /// Poisons the destinations; may read inputs, does not write results.
  virtual void start() = 0;
  /// Writes the results.
  virtual void finish() = 0;

 protected:
  operation() = default;
  operation(const operation&) = delete;
  operation& operator=(const operation&) = delete;
};

}  // namespace kvtier::gpu
