// The steps of protocol/ on a GPU: each is a launch on the caller's stream. See protocol/backend.hpp.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/word_watch.hpp"
#include "cuda/cuda_parts.hpp"
#include "cuda/device_pool.hpp"
#include "cuda/kernels.hpp"
#include "cuda/service.hpp"
#include "cuda/stream_order.hpp"
#include "protocol/backend.hpp"
#include "protocol/port.hpp"

struct CUevent_st;

namespace heddle {

class CudaBackend : public Backend {
 public:
  /// Loads all kernels and runs each once idly: later, other ranks' kernels may wait for this one's.
  explicit CudaBackend(const CudaParts&);
  ~CudaBackend() override;

  Device device() const override { return {DeviceKind::cuda, parts_.device}; }
  /// Until the next use(). Steps run in the order of their calls, whatever their streams.
  void use(const Launch&) override;
  const Launch& launch() const { return launch_; }
  int num_sms() const { return num_sms_; }

  std::shared_ptr<void> allocate(size_t bytes) override;
  std::shared_ptr<void> share(size_t bytes) override;
  std::shared_ptr<void> take(size_t bytes) override;
  void read(void* to, const void* from, size_t bytes) override;
  void write(void* to, const void* from, size_t bytes) override;

  int64_t plan_lanes() const override;
  IdCheck expect_ids() override;
  void take_ids(const TableView&, int experts, int32_t* to, IdCheck&) override;
  bool plans_in_dispatch() const override { return true; }
  void take_map(const TableView&, uint8_t* to) override;
  uint64_t bad_id(const IdCheck&) const override;
  void plan(const Topology&, const PlanView&) override;
  void plan_from(const TableView& ids, IdCheck&, const Topology&, const PlanView&) override;
  bool await_signals(const Context&, const SignalView&) override;
  bool dispatch_send(const DispatchArgs&) override;
  bool dispatch_headers(const DispatchArgs&) override;
  bool dispatch_receive(const DispatchArgs&) override;
  bool combine_send(const CombineArgs&) override;
  bool combine_headers(const CombineArgs&) override;
  bool combine_receive(const CombineArgs&) override;
  bool dispatch(const DispatchArgs&) override;
  bool combine(const CombineArgs&) override;

  bool is_asynchronous() const override { return true; }
  uint64_t steps_begun() const override { return ticket_; }
  uint64_t steps_ended() const override;
  uint64_t waited() const override { return waited_; }
  /// What the last step with `wait` told; valid until 64 more have run.
  const Report& report() const override { return *last_report_; }
  const Ledger& look(const Context&) override;
  bool is_faulted(const Context&) const override { return is_faulted(); }
  bool is_faulted() const;
  void interrupt(const Context&, bool on) override;

  void wait_for(CUevent_st*) override;
  void signal(CUevent_st*) override;
  bool is_capturing() const override;
  void keep(std::shared_ptr<const void>) override;

  void drain() override;
  void claim_fault(const Context&, const Fault&) override;
  void publish_fault(const Context&) override;
  void close_pair(const Context&, int peer) override;
  void announce_destroyed(const Context&) override;
  bool reset(const Context&, const RankSet& members, RankSet& missing) override;

  /// A copy of the control region, made by this call.
  const std::byte* window() override;
  uint64_t now() override;
  void relax(int attempt) override;

  /// What the last whole call left, its moments in cycles among it; a copy, for benchmarks.
  PumpState look_at_pump();
  /// By which kernels a whole call goes, for benchmarks: "words", "belt", "lanes" or "steps".
  const char* variant_of(const DispatchArgs&) const;
  const char* variant_of(const CombineArgs&) const;
  /// Workers of a block that send in whole calls, for benchmarks; 0: the default.
  void tune(int senders);

 private:
  static constexpr size_t kReports = 64;
  static constexpr size_t kIdChecks = 64;

  struct Shot {
    const void* kernel;
    void** arguments;
    int blocks = 1;
    int threads = 1;
    int shared_bytes = 0;
    CUstream_st* stream;
    bool starts_early = false;  // it waits itself for the launch before
  };

  template <class Args>
  bool run(Step, const Args&);
  Site begin_step();
  bool run_shot(const Shot&, const Site&, const Call&);
  /// How a whole call is launched.
  struct WholeShape {
    WholeKernel kernel;
    int movers = 0;  // workers of a block that move rows
    int shared_bytes = 0;
  };

  bool dispatch_by_steps(const DispatchArgs&);
  bool combine_by_steps(const CombineArgs&);
  void rehearse_whole();
  WholeShape shape_of(const DispatchArgs&) const;
  WholeShape shape_of(const CombineArgs&) const;
  Shot whole_shot(const WholeShape&, void** arguments) const;
  template <class Args>
  bool run_decode(uint32_t phases, const Args&);
  bool decode_whole(const DispatchArgs&);
  bool decode_whole(const CombineArgs&);
  Shot decode_shot(const void* kernel, int64_t shared_bytes, void** arguments, int blocks) const;
  int decode_blocks(int64_t items) const;
  bool may_overlap(int blocks) const;
  bool decodes(const Call&) const;
  void rehearse_decode(const DispatchArgs&, const CombineArgs&);
  void fire(const Shot&);
  void serve(const void* kernel, void** arguments, int threads = 1);
  void rehearse(Workers);
  Site make_site() const;
  Site next_site();
  bool await(const Site&, const Call&);
  void copy(void* to, const void* from, size_t bytes, CUstream_st*);
  void deliver_interrupt();
  void set_interrupted(Ledger*, uint64_t word);
  uint64_t* place_of(const IdCheck&) const;
  void take_table(const void* kernel, const TableView&, void** arguments);
  uint64_t patience() const;
  [[noreturn]] void give_up(const char* what);
  bool end_broken(const Call&);
  void finish(CUstream_st*, const char* doing);
  Shot shot_of(Step, void** arguments) const;
  Shot plan_shot(const Topology&, const PlanView&, void** arguments) const;
  bool plans_by_blocks(const Topology&) const;
  void make_plan(const Topology&, const PlanView&, const GivenIds&);
  int usable_sms() const;

  const CudaParts parts_;
  const DirectPort port_;
  int num_sms_ = 0;
  int most_shared_bytes_ = 0;
  bool is_sm90_ = false;  // or later: bulk copies, launches that start before the one they follow has ended
  DevicePool pool_;
  std::unique_ptr<StreamOrder> order_;  // of the steps
  std::shared_ptr<void> barrier_;
  std::shared_ptr<void> pump_;
  std::shared_ptr<void> decode_;
  std::shared_ptr<Report> reports_;
  std::shared_ptr<ResetResult> reset_result_;
  std::shared_ptr<uint64_t> faulted_;
  std::unique_ptr<WordWatch> watch_;  // of it
  std::shared_ptr<uint64_t> refused_;  // seq of a refused call that nobody waited for
  std::shared_ptr<uint64_t> ended_;
  std::shared_ptr<IdCheck> id_checks_;
  std::unique_ptr<Ledger> ledger_;
  std::shared_ptr<std::byte> control_;
  std::array<bool, 3> is_rehearsed_{};
  Launch launch_;
  const Report* last_report_ = nullptr;
  uint64_t ticket_ = 0;
  uint64_t plans_ = 0;
  uint64_t waited_ = 0;  // ns
  std::atomic<Ledger*> to_interrupt_ = nullptr;  // its step shall end; the host's waits see to it
  Ledger* interrupted_ = nullptr;                // its device word is set
  CUstream_st* own_stream_ = nullptr;
  CUstream_st* side_stream_ = nullptr;  // not in the order of the steps
};

}  // namespace heddle
