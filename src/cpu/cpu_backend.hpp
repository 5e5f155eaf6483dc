// The steps of protocol/ on CPU threads, over any Port.
#pragma once

#include <cstdlib>
#include <new>
#include <utility>

#include "cpu/crew.hpp"
#include "protocol/backend.hpp"
#include "protocol/combine.hpp"
#include "protocol/dispatch.hpp"
#include "protocol/plan.hpp"
#include "protocol/reset.hpp"

namespace heddle {

template <class Port>
class CpuBackend : public Backend {
 public:
  CpuBackend(Port port, int threads) : port_(std::move(port)), crew_(threads) {}

  std::shared_ptr<void> allocate(size_t bytes) override {
    return {std::calloc(bytes > 0 ? bytes : 1, 1), [](void* memory) { std::free(memory); }};
  }
  int64_t plan_lanes() const override { return crew_.size(); }

  void plan(const Topology& topo, const PlanView& view) override {
    run([&](const auto& coop) { make_plan(coop, topo, view); return true; });
  }

  bool dispatch_send(const DispatchArgs& a) override {
    return run([&](const auto& coop) { return heddle::dispatch_send(coop, port_, a); });
  }
  bool dispatch_headers(const DispatchArgs& a) override {
    return run([&](const auto& coop) { return heddle::dispatch_headers(coop, port_, a); });
  }
  bool dispatch_receive(const DispatchArgs& a) override {
    return run([&](const auto& coop) { return heddle::dispatch_receive(coop, port_, a); });
  }
  bool combine_send(const CombineArgs& a) override {
    return run([&](const auto& coop) { return heddle::combine_send(coop, port_, a); });
  }
  bool combine_headers(const CombineArgs& a) override {
    return run([&](const auto& coop) { return heddle::combine_headers(coop, port_, a); });
  }
  bool combine_receive(const CombineArgs& a) override {
    return run([&](const auto& coop) { return heddle::combine_receive(coop, port_, a); });
  }

  void drain() override { port_.drain(); }
  void publish_fault(const Context& ctx) override { heddle::publish_fault(port_, ctx); }
  void close_pair(const Context& ctx, int peer) override { heddle::close_pair(port_, ctx, peer); }
  void announce_destroyed(const Context& ctx) override { heddle::announce_destroyed(port_, ctx); }
  bool reset(const Context& ctx, const RankSet& members, RankSet& missing) override {
    return heddle::reset(port_, ctx, members, missing);
  }

  const std::byte* window() override { return port_.local(); }
  uint64_t now() override { return port_.now(); }
  void relax(int attempt) override { port_.relax(attempt); }

 private:
  template <class Step>
  bool run(const Step& step) {
    return crew_.run(step);
  }

  Port port_;
  Crew crew_;
};

}  // namespace heddle
