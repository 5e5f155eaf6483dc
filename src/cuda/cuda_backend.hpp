// The steps of protocol/ on a GPU: each is a launch on the caller's stream. See protocol/backend.hpp.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/cuda_parts.hpp"
#include "cuda/device_pool.hpp"
#include "cuda/kernels.hpp"
#include "cuda/service.hpp"
#include "protocol/backend.hpp"
#include "protocol/port.hpp"

struct CUevent_st;

namespace heddle {

class CudaBackend : public Backend {
 public:
  /// Loads all kernels and runs each once idly: later, other ranks' kernels may wait for this one's.
  explicit CudaBackend(const CudaParts&);
  ~CudaBackend() override;

  /// Until the next use(). Steps run in the order of their calls, whatever their streams.
  void use(const Launch&);
  const Launch& launch() const { return launch_; }
  int num_sms() const { return num_sms_; }

  std::shared_ptr<void> allocate(size_t bytes) override;
  int64_t plan_lanes() const override;

  void plan(const Topology&, const PlanView&) override;
  bool dispatch_send(const DispatchArgs&) override;
  bool dispatch_headers(const DispatchArgs&) override;
  bool dispatch_receive(const DispatchArgs&) override;
  bool combine_send(const CombineArgs&) override;
  bool combine_headers(const CombineArgs&) override;
  bool combine_receive(const CombineArgs&) override;

  void drain() override;
  void publish_fault(const Context&) override;
  void close_pair(const Context&, int peer) override;
  void announce_destroyed(const Context&) override;
  bool reset(const Context&, const RankSet& members, RankSet& missing) override;

  /// A copy of the control region, made by this call.
  const std::byte* window() override;
  uint64_t now() override;
  void relax(int attempt) override;

  /// What the last step with `wait` told; valid until 64 more have run.
  const Report& report() const { return *last_report_; }

  /// The ledger as it is after all steps so far; a copy, valid until the next call of this.
  const Ledger& look(const Context&);
  /// Whether a step that has ended met a fault, also one that nobody waited for. Cheap.
  bool is_faulted() const;
  /// While a step runs: it ends at its next look (FaultCode::interrupted). `on` false takes that back.
  void interrupt(const Context&, bool on);

  /// Copies between the host's memory and the steps', after all steps so far and before all later ones.
  void read(void* to, const void* from, size_t bytes);
  void write(void* to, const void* from, size_t bytes);

 private:
  struct Shot {
    const void* kernel;
    void** arguments;
    int blocks = 1;
    int threads = 1;
    int shared_bytes = 0;
    CUstream_st* stream;
  };

  template <class Args>
  bool run(Step, const Args&);
  void fire(const Shot&);
  void serve(const void* kernel, void** arguments);
  void rehearse(Workers);
  void follow_last_step(CUstream_st*);
  void note_step(CUstream_st*);
  Site make_site() const;
  Site next_site();
  bool await(const Site&, const Call&);
  bool end_broken(const Call&);
  void finish(CUstream_st*, const char* doing);
  Shot shot_of(Step, void** arguments) const;
  Shot plan_shot(const Topology&, const PlanView&, void** arguments) const;
  int usable_sms() const;

  const CudaParts parts_;
  const DirectPort port_;
  int num_sms_ = 0;
  int most_shared_bytes_ = 0;
  DevicePool pool_;
  std::shared_ptr<void> barrier_;
  std::shared_ptr<Report> reports_;
  std::shared_ptr<ResetResult> reset_result_;
  std::shared_ptr<uint64_t> faulted_;
  std::unique_ptr<Ledger> ledger_;
  std::shared_ptr<std::byte> control_;
  std::array<bool, 3> is_rehearsed_{};
  Launch launch_;
  const Report* last_report_ = nullptr;
  uint64_t ticket_ = 0;
  CUstream_st* own_stream_ = nullptr;
  CUstream_st* last_stream_ = nullptr;
  CUevent_st* last_step_ = nullptr;
};

}  // namespace heddle
