// What the host learns of a call whose steps run elsewhere: written by the step's leader to memory that the host can read,
// so that it need not look into the device's.
#pragma once

#include <cstdint>

#include "protocol/call.hpp"
#include "protocol/combine_args.hpp"
#include "protocol/dispatch_args.hpp"

namespace heddle {

struct Report {
  uint64_t ticket = 0;  // of the step that wrote all else; written last
  uint64_t faulted = 0;
  uint64_t incarnation = 0;
  int64_t received = 0;     // dispatch, after headers: tokens that arrive here
  int64_t rows = 0;         // dispatch, after headers: rows of an exact output
  int64_t num_dropped = 0;  // dispatch, after receive
  uint64_t seq = 0;
  int32_t lane = 0;
  int32_t rounds = 0;
  int32_t refused_by = -1;
  Refusal refusal;
  Fault fault;
  int32_t count[kMaxRanks] = {};   // rows from each source
  uint8_t status[kMaxRanks] = {};  // SourceStatus
};

HEDDLE_HD inline void report_call(const Call& call, Report& report) {
  const Ledger& ledger = *call.ctx.ledger;
  const CallState& state = *call.state;
  report.incarnation = ledger.incarnation;
  report.fault = ledger.fault;
  report.seq = state.seq;
  report.lane = state.lane;
  report.rounds = most_rounds(call);
  report.refused_by = state.refused_by;
  report.refusal = state.refusal;
  for (int peer = 0; peer < call.ctx.topo.world; ++peer) {
    report.count[peer] = state.count[peer];
    report.status[peer] = state.status[peer];
  }
  report.faulted = ledger.is_faulted();
}

/// After dispatch_headers.
HEDDLE_HD inline void report_sizes(const DispatchArgs& args, Report& report) {
  const Topology& topo = args.call.ctx.topo;
  if (args.call.refusal.is_set() || args.call.ctx.ledger->is_faulted()) return;
  report.received = args.route.recv_offset[topo.world];
  const bool token_major = args.call.shape.layout == Layout::token_major;
  report.rows = token_major ? report.received : args.out.expert_offsets[topo.num_local(topo.rank)];
}

/// After dispatch_receive.
HEDDLE_HD inline void report_drops(const DispatchArgs& args, Report& report) {
  if (args.call.refusal.is_set() || args.out.num_dropped == nullptr) return;
  report.num_dropped = *args.out.num_dropped;
}

/// By one thread, which has seen what the step wrote.
HEDDLE_HD inline void publish_report(Report& report, uint64_t ticket) { store_release(&report.ticket, ticket); }

}  // namespace heddle
