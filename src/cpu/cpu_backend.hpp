// The steps of protocol/ on CPU threads, over any Port. The host and the steps share their memory.
#pragma once

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "cpu/crew.hpp"
#include "protocol/backend.hpp"
#include "protocol/combine.hpp"
#include "protocol/dispatch.hpp"
#include "protocol/plan.hpp"
#include "protocol/poison.hpp"
#include "protocol/reset.hpp"

namespace heddle {

/// Tests put crews of their own in.
template <class Port, class Members = Crew>
class CpuBackend : public Backend {
 public:
  template <class... OfCrew>
  explicit CpuBackend(Port port, const OfCrew&... of_crew) : port_(std::move(port)), crew_(of_crew...) {}

  void use(const Launch& launch) override { reports_ = launch.wait; }

  std::shared_ptr<void> allocate(size_t bytes) override {
    return {std::calloc(bytes > 0 ? bytes : 1, 1), [](void* memory) { std::free(memory); }};
  }
  void read(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void write(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }

  int64_t plan_lanes() const override { return crew_.size(); }
  void take_ids(const TableView& ids, int experts, int32_t* to, IdCheck& check) override {
    heddle::take_ids(Solo{}, ids, experts, to, &check.bad);
  }
  void take_map(const TableView& map, uint8_t* to) override { heddle::take_map(Solo{}, map, to); }
  void plan(const Topology& topo, const PlanView& view) override {
    run([&](const auto& coop) { make_plan(coop, topo, view); return true; });
  }

  bool await_signals(const Context& ctx, const SignalView& view) override {
    return heddle::await_signals(port_, ctx, view, 0, 1);
  }

  bool dispatch_send(const DispatchArgs& a) override {
    make_plan_of(a);
    return ended(a, run([&](const auto& coop) { return heddle::dispatch_send(coop, port_, a); }));
  }
  bool dispatch_headers(const DispatchArgs& a) override {
    const bool ok = ended(a, run([&](const auto& coop) { return heddle::dispatch_headers(coop, port_, a); }));
    if (reports_) report_sizes(a, report_with(a.call));
    return ok;
  }
  bool dispatch_receive(const DispatchArgs& a) override {
    const bool ok = ended(a, run([&](const auto& coop) { return heddle::dispatch_receive(coop, port_, a); }));
    if (reports_) report_drops(a, report_with(a.call));
    return ok;
  }
  bool combine_send(const CombineArgs& a) override {
    return run([&](const auto& coop) { return heddle::combine_send(coop, port_, a); });
  }
  bool combine_headers(const CombineArgs& a) override {
    return run([&](const auto& coop) { return heddle::combine_headers(coop, port_, a); });
  }
  bool combine_receive(const CombineArgs& a) override {
    const bool ok = run([&](const auto& coop) { return heddle::combine_receive(coop, port_, a); });
    if (reports_) report_results(a, report_with(a.call));
    return ok;
  }

  const Report& report() const override { return report_; }
  const Ledger& look(const Context& ctx) override { return *ctx.ledger; }
  bool is_faulted(const Context& ctx) const override { return ctx.ledger->is_faulted(); }
  void interrupt(const Context& ctx, bool on) override { store_release(&ctx.ledger->interrupted, on); }

  void drain() override { port_.drain(); }
  void claim_fault(const Context& ctx, const Fault& fault) override { heddle::claim_fault(ctx, fault); }
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
  Port& port() { return port_; }
  Members& crew() { return crew_; }

  template <class Step>
  bool run(const Step& step) {
    return crew_.run(step);
  }

 private:
  bool ended(const DispatchArgs& a, bool ok) {
    if (!ok) give_up_experts(Solo(), a);
    return ok;
  }
  Report& report_with(const Call& call) {
    report_call(call, report_);
    return report_;
  }

  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  Port port_;
  Members crew_;
  Report report_;
  bool reports_ = true;
};

}  // namespace heddle
