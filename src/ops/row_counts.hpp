// What a call that has ended tells of its rows.
#pragma once

#include <heddle/metrics.hpp>

#include <vector>

#include "layout/slot.hpp"
#include "protocol/report.hpp"

namespace heddle {

/// Adds the call's rows to the metrics, and the ranks whose part is missing to `masked`.
inline void count_rows(const Call& call, const Report& report, OperationMetrics& metrics, std::vector<int>& masked) {
  const Topology& topo = call.ctx.topo;
  for (int peer = 0; peer < topo.world; ++peer) {
    if (!report.is_live(peer)) {
      masked.push_back(peer);
      continue;
    }
    const auto sent = static_cast<uint64_t>(report.sent[peer]);
    const auto received = static_cast<uint64_t>(report.count[peer]);
    metrics.rows_sent += sent;
    if (peer != topo.rank) metrics.bytes_sent += sent * static_cast<uint64_t>(Slot::of(call.shape).stride);
    metrics.rows_received += received;
    if (report.direct[peer] != 0) metrics.rows_in_place += received;
  }
  metrics.rounds += static_cast<uint64_t>(report.rounds);
}

}  // namespace heddle
