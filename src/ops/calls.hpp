// The inside of a Buffer: checks, runs the steps, keeps faults and metrics.
#pragma once

#include <heddle/buffer.hpp>

#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "ops/buffer_parts.hpp"
#include "ops/in_flight.hpp"
#include "ops/plan_data.hpp"
#include "ops/quarantine.hpp"
#include "ops/refuse.hpp"

namespace heddle {

class Calls : public std::enable_shared_from_this<Calls> {
 public:
  explicit Calls(BufferParts);
  ~Calls();

  Plan plan(const TensorView& ids, const Placement&);
  Reach reach(const TensorView& ids, const Placement&);
  Plan plan_from_rank_map(const TensorView& map, const Placement&);
  Handle handle(const Plan&, const RouteTensors&, const Placement&);
  Received dispatch(const Plan&, const DispatchInput&, const DispatchOptions&);
  Received dispatch(const TensorView& ids, const DispatchInput&, const DispatchOptions&);
  Received dispatch_again(const Handle&, const DispatchInput&, const DispatchOptions&);
  Split<Received> dispatch_send(const Plan&, const DispatchInput&, const DispatchOptions&);
  Split<Received> dispatch_send(const TensorView& ids, const DispatchInput&, const DispatchOptions&);
  Combined combine(const Handle&, const CombineInput&, const CombineOptions&);
  Split<Combined> combine_send(const Handle&, const CombineInput&, const CombineOptions&);

  void mask(int rank);
  std::vector<int> masked() const;
  void reset(const std::vector<int>& members);
  void refuse(Kind, std::string_view argument);
  void interrupt() { parts_.backend->interrupt(ctx_, true); }
  void destroy();
  void destroy_quietly() noexcept;

  // For the calls themselves; the lock is held.
  const BufferParts& parts() const { return parts_; }
  Backend& backend() { return *parts_.backend; }
  const Context& context() const { return ctx_; }
  const Allocate& allocate() const { return allocate_; }
  /// Outputs are the caller's, also where a heap could give them.
  bool has_own_allocator() const { return has_own_allocator_ && parts_.heap_offset != nullptr; }
  Metrics& counters() { return metrics_; }
  /// [L] for a call that the host waits for: until the next one.
  int32_t* host_counts() { return static_cast<int32_t*>(host_counts_.get()); }
  uint64_t id() const { return id_; }
  uint64_t incarnation() const { return incarnation_; }
  /// Where the next steps run, and whether the host waits for them. `enough`: more multiprocessors gain nothing (0: all do).
  void use(const Placement&, bool wait, int enough = 0);
  /// Multiprocessors for a call of this shape where nobody has said how many; 0: all.
  int enough_sms(const Shape&) const;
  /// Throws BadArgument.
  void check_placement(const char* operation, const Placement&) const;
  void check_device(const char* operation, const char* name, const TensorView&) const;
  /// Throws BadArgument unless it is what statistics of waits go to, or not set.
  void check_waits(const char* operation, const TensorView&) const;
  std::mutex& mutex() { return mutex_; }
  /// False from a step: tells the others, finds who is to blame, throws.
  [[noreturn]] void raise_fault();
  /// Throws BadArgument for a handle that is not of this buffer and incarnation.
  const Route& checked_route(const char* operation, const Handle&) const;
  /// Throws if another rank refused the call.
  void raise_refusal(Kind, const Report&);
  void keep_until_reset(std::shared_ptr<void> block) { quarantine_.keep(std::move(block)); }
  /// Until the steps so far have ended, and until a reset if in a fault.
  void keep_until_ended(std::shared_ptr<void> block) { quarantine_.keep_until(backend().steps_begun(), std::move(block)); }

  bool is_destroyed() const { return destroyed_; }
  Metrics metrics() const;
  void set_allocator(Allocate);
  const Topology& topology() const { return parts_.topo; }
  const Config& config() const { return parts_.config; }
  const std::string& windows() const { return parts_.windows; }
  const std::vector<std::string>& paths() const { return parts_.paths; }

 private:
  void check_usable();
  /// What every call does first: its lane's call before it is received (I6).
  void begin(Kind, const Placement&);
  void receive_before(Kind);
  void settle();
  void check_capture(Kind);
  void drop_in_flight(const char* why);
  /// Makes the call that the others make, with nothing in it but the reason (I7).
  void run_refused(Kind, const Refusal&);
  /// Makes a call by `make`, which may throw BadArgument, and sends it.
  template <class Make>
  auto start(Kind, const Placement&, const Make& make);
  /// A dispatch from ids. Throws BadArgument.
  std::shared_ptr<class DispatchCall> planned(const TensorView& ids, const DispatchInput&, const DispatchOptions&,
                                              bool split);
  template <class Call>
  auto in_flight(Kind, const std::shared_ptr<Call>&);
  std::function<void()> hook_of(std::shared_ptr<InFlight>);

  BufferParts parts_;
  Device device_;  // of the backend
  std::shared_ptr<void> ledger_;
  std::shared_ptr<void> host_counts_;
  Context ctx_;
  uint64_t incarnation_ = 0;
  Allocate allocate_ = allocate_host;
  bool has_own_allocator_ = false;
  Metrics metrics_;
  uint64_t id_ = 0;
  mutable std::mutex mutex_;
  std::array<uint64_t, kKinds> sent_ = {};  // calls since the last reset; their lanes alternate
  std::array<std::array<std::shared_ptr<InFlight>, kLanes>, kKinds> in_flight_;  // the last split call of each lane
  Quarantine quarantine_;
  std::string first_fault_;
  bool destroyed_ = false;
  bool has_captured_ = false;  // replays take lanes that this host does not count
};

}  // namespace heddle
