// What a machine must offer for Buffer to run on it: the steps, and the host's side of faults and resets. One POD of
// arguments per operation is all that a step gets.
#pragma once

#include <cstddef>
#include <memory>

#include "protocol/combine_args.hpp"
#include "protocol/dispatch_args.hpp"

namespace heddle {

class Backend {
 public:
  virtual ~Backend() = default;

  /// Memory that the steps can reach, zeroed. Never null.
  virtual std::shared_ptr<void> allocate(size_t bytes) = 0;
  /// How many lanes make a plan together; sizes PlanView::scratch.
  virtual int64_t plan_lanes() const = 0;

  virtual void plan(const Topology&, const PlanView&) = 0;

  // Each returns false if the call ended in a fault; the ledger says which.
  virtual bool dispatch_send(const DispatchArgs&) = 0;
  virtual bool dispatch_headers(const DispatchArgs&) = 0;
  virtual bool dispatch_receive(const DispatchArgs&) = 0;
  virtual bool combine_send(const CombineArgs&) = 0;
  virtual bool combine_headers(const CombineArgs&) = 0;
  virtual bool combine_receive(const CombineArgs&) = 0;

  /// Returns once all puts of this rank have landed.
  virtual void drain() = 0;
  virtual void publish_fault(const Context&) = 0;
  virtual void close_pair(const Context&, int peer) = 0;
  virtual void announce_destroyed(const Context&) = 0;
  virtual bool reset(const Context&, const RankSet& members, RankSet& missing) = 0;

  /// This rank's own window, for the host to read fault cells in.
  virtual const std::byte* window() = 0;
  virtual uint64_t now() = 0;
  virtual void relax(int attempt) = 0;
};

}  // namespace heddle
