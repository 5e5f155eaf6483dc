// Device memory for tables and states. cudaMalloc and cudaFree may wait for the whole device, where kernels of other ranks may
// wait for this one; so memory is mapped in slabs that nobody waits for, and comes back to the pool, not to the driver.
#pragma once

#include <cstddef>
#include <memory>

namespace heddle {

/// Any thread. Blocks may outlive the pool. Whoever gets a block must use it after the kernels that used it before, which
/// holds where all kernels of a pool's user run in one order.
class DevicePool {
 public:
  explicit DevicePool(int device);
  ~DevicePool();

  /// Uninitialised, 256-aligned. Throws Error{system}.
  std::shared_ptr<void> take(size_t bytes);

  /// Bytes mapped so far.
  size_t mapped() const;

 private:
  class Slabs;
  std::shared_ptr<Slabs> slabs_;
};

}  // namespace heddle
