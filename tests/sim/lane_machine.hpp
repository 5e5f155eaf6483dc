// A rank whose steps are run by the lanes of a LaneCrew.
#pragma once

#include <cstring>
#include <functional>

#include "bootstrap/bootstrap.hpp"
#include "cpu/cpu_backend.hpp"
#include "memory/symmetric_memory.hpp"
#include "sim/lane_crew.hpp"
#include "support/machine.hpp"

namespace heddle::testing {

/// Lanes of a worker that stands for a warp. Each is a fiber, whose stack AddressSanitizer looks after at every switch, and a thread
/// to ThreadSanitizer.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kWarpLanes = 8;
#else
inline constexpr int kWarpLanes = 32;
#endif

/// Waiting gives the thread to the other lanes.
class LanePort : public DirectPort {
 public:
  using DirectPort::DirectPort;
  void relax(int attempt) const {
    if (Fiber* fiber = Fiber::current()) fiber->yield();
    else pause(attempt);
  }
};

class LaneBackend : public CpuBackend<LanePort, LaneCrew> {
 public:
  LaneBackend(const PeerView& windows, const LaneShape& shape, uint64_t seed)
      : CpuBackend(LanePort(windows, PeerView{}), shape, seed) {}

  /// How calls are done in one go; null: step by step.
  std::function<bool(LaneCrew&, LanePort&, const DispatchArgs&)> whole_dispatch;
  std::function<bool(LaneCrew&, LanePort&, const CombineArgs&)> whole_combine;

  bool dispatch(const DispatchArgs& a) override {
    return whole_dispatch ? whole_dispatch(crew(), port(), a) : Backend::dispatch(a);
  }
  bool combine(const CombineArgs& a) override { return whole_combine ? whole_combine(crew(), port(), a) : Backend::combine(a); }
};

class LaneMachine : public Machine {
 public:
  LaneMachine(Bootstrap& bootstrap, const MachineOptions& options, const LaneShape& shape)
      : memory_(make_heap(bootstrap, options.window_bytes, options.timeout)),
        backend_(memory_.view(), shape, static_cast<uint64_t>(bootstrap.rank()) + 1) {}

  LaneBackend& backend() override { return backend_; }
  void read(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void write(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }

 private:
  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  SymmetricMemory memory_;
  LaneBackend backend_;
};

}  // namespace heddle::testing
