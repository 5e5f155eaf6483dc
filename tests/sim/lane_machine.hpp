// A rank whose steps are run by the lanes of a LaneCrew.
#pragma once

#include <cstdlib>
#include <cstring>

#include "bootstrap/bootstrap.hpp"
#include "memory/symmetric_memory.hpp"
#include "protocol/combine.hpp"
#include "protocol/dispatch.hpp"
#include "protocol/plan.hpp"
#include "protocol/reset.hpp"
#include "sim/lane_crew.hpp"
#include "support/machine.hpp"

namespace heddle::testing {

/// Waiting gives the thread to the other lanes.
class LanePort : public DirectPort {
 public:
  using DirectPort::DirectPort;
  void relax(int attempt) const {
    if (Fiber* fiber = Fiber::current()) fiber->yield();
    else pause(attempt);
  }
};

class LaneBackend : public Backend {
 public:
  LaneBackend(const PeerView& windows, const LaneShape& shape, uint64_t seed)
      : port_(windows, PeerView{}), crew_(shape, seed) {}

  std::shared_ptr<void> allocate(size_t bytes) override {
    return {std::calloc(bytes > 0 ? bytes : 1, 1), [](void* memory) { std::free(memory); }};
  }
  int64_t plan_lanes() const override { return crew_.size(); }

  void plan(const Topology& topo, const PlanView& view) override {
    run([&](const Lane& lane) {
      make_plan(lane, topo, view);
      return true;
    });
  }
  bool dispatch_send(const DispatchArgs& a) override {
    return run([&](const Lane& lane) { return heddle::dispatch_send(lane, port_, a); });
  }
  bool dispatch_headers(const DispatchArgs& a) override {
    return run([&](const Lane& lane) { return heddle::dispatch_headers(lane, port_, a); });
  }
  bool dispatch_receive(const DispatchArgs& a) override {
    return run([&](const Lane& lane) { return heddle::dispatch_receive(lane, port_, a); });
  }
  bool combine_send(const CombineArgs& a) override {
    return run([&](const Lane& lane) { return heddle::combine_send(lane, port_, a); });
  }
  bool combine_headers(const CombineArgs& a) override {
    return run([&](const Lane& lane) { return heddle::combine_headers(lane, port_, a); });
  }
  bool combine_receive(const CombineArgs& a) override {
    return run([&](const Lane& lane) { return heddle::combine_receive(lane, port_, a); });
  }

  void drain() override {}
  void publish_fault(const Context& ctx) override { heddle::publish_fault(port_, ctx); }
  void close_pair(const Context& ctx, int peer) override { heddle::close_pair(port_, ctx, peer); }
  void announce_destroyed(const Context& ctx) override { heddle::announce_destroyed(port_, ctx); }
  bool reset(const Context& ctx, const RankSet& members, RankSet& missing) override {
    return heddle::reset(port_, ctx, members, missing);
  }
  const std::byte* window() override { return port_.local(); }
  uint64_t now() override { return port_.now(); }
  void relax(int attempt) override { port_.relax(attempt); }

 protected:
  template <class Step>
  bool run(const Step& step) {
    return crew_.run(step);
  }

 private:
  LanePort port_;
  LaneCrew crew_;
};

class LaneMachine : public Machine {
 public:
  LaneMachine(Bootstrap& bootstrap, const MachineOptions& options, const LaneShape& shape)
      : memory_(make_heap(bootstrap, options.window_bytes, options.timeout)),
        backend_(memory_.view(), shape, static_cast<uint64_t>(bootstrap.rank()) + 1) {}

  Backend& backend() override { return backend_; }
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
