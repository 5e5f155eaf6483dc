// What the host learns of a step: where steps run elsewhere, their leader writes it to memory that the host can read.
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
  Refusal refusal;  // if refused_by is a rank
  Fault fault;      // if faulted
  int32_t sent[kMaxRanks] = {};     // rows to each rank
  int32_t count[kMaxRanks] = {};    // rows from each rank
  uint8_t status[kMaxRanks] = {};   // SourceStatus
  uint8_t counted[kMaxRanks] = {};  // see CallState
  uint8_t direct[kMaxRanks] = {};   // its rows came in place (I14)

  HEDDLE_HD bool is_live(int peer) const { return status[peer] == static_cast<uint8_t>(SourceStatus::arrived); }
};

HEDDLE_HD inline void report_call(const Call& call, Report& report) {
  const Ledger& ledger = *call.ctx.ledger;
  const CallState& state = *call.state;
  report.incarnation = ledger.incarnation;
  report.seq = state.seq;
  report.lane = state.lane;
  report.rounds = most_rounds(call);
  report.refused_by = state.refused_by;
  if (state.refused_by >= 0) report.refusal = state.refusal;
  for (int peer = 0; peer < call.ctx.topo.world; ++peer) {
    report.count[peer] = state.count[peer];
    report.status[peer] = state.status[peer];
    report.counted[peer] = state.counted[peer];
    report.direct[peer] = state.direct_from[peer];
  }
  report.faulted = ledger.is_faulted();
  if (report.faulted != 0) report.fault = ledger.fault;
}

HEDDLE_HD inline bool has_sizes(const Call& call) { return !call.refusal.is_set() && !call.ctx.ledger->is_faulted(); }

/// After dispatch_headers.
HEDDLE_HD inline void report_sizes(const DispatchArgs& args, Report& report) {
  const Topology& topo = args.call.ctx.topo;
  if (!has_sizes(args.call)) return;
  report.received = args.route.recv_offset[topo.world];
  const bool token_major = args.call.shape.layout == Layout::token_major;
  report.rows = token_major ? report.received : args.out.expert_offsets[topo.num_local(topo.rank)];
  for (int peer = 0; peer < topo.world; ++peer) report.sent[peer] = args.plan.sends(peer);
}

/// After dispatch_receive.
HEDDLE_HD inline void report_drops(const DispatchArgs& args, Report& report) {
  report_sizes(args, report);
  if (!has_sizes(args.call)) return;
  if (args.out.num_dropped != nullptr) report.num_dropped = *args.out.num_dropped;
}

/// After combine_receive.
HEDDLE_HD inline void report_results(const CombineArgs& args, Report& report) {
  if (!has_sizes(args.call)) return;
  for (int peer = 0; peer < args.call.ctx.topo.world; ++peer) {
    report.sent[peer] = args.route.recv_offset[peer + 1] - args.route.recv_offset[peer];
  }
}

/// By one thread, which has seen what the step wrote.
HEDDLE_HD inline void publish_report(Report& report, uint64_t ticket) { store_release(&report.ticket, ticket); }

}  // namespace heddle
