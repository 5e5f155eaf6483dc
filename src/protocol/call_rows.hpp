// Waiting for the rows of a source, whether they are read or not (I5, I7).
#pragma once

#include <cstdint>

#include "protocol/await.hpp"
#include "protocol/call.hpp"
#include "protocol/call_header.hpp"

namespace heddle {

HEDDLE_HD inline Wait wait_for_rows(const Call& call, int source, int64_t rows, uint64_t deadline) {
  return {.peer = source, .awaited = Awaited::rows,
          .wanted = call.state->rows_before[source] + static_cast<uint64_t>(rows), .deadline = deadline};
}

/// Waits until `rows` more rows of the source are there than before this call.
template <class Port>
HEDDLE_HD void await_rows(Port& port, const Call& call, int source, int64_t rows, uint64_t deadline) {
  CallState& state = *call.state;
  if (!is_live(state, source)) return;
  const Arrival arrival = await(port, call, wait_for_rows(call, source, rows, deadline));
  if (arrival == Arrival::masked) state.status[source] = static_cast<uint8_t>(SourceStatus::masked);
}

/// The same, one look. True: nothing is left to wait for, or the call has ended in a fault.
template <class Port>
HEDDLE_HD bool look_for_rows(Port& port, const Call& call, int source, int64_t rows, uint64_t deadline) {
  CallState& state = *call.state;
  if (!is_live(state, source)) return true;
  Wait wait = wait_for_rows(call, source, rows, deadline);
  wait.is_one_of_many = true;
  const Arrival arrival = look_for(port, call, wait, NoProbe());
  if (arrival == Arrival::masked) state.status[source] = static_cast<uint8_t>(SourceStatus::masked);
  return arrival != Arrival::pending;
}

/// Every word that was sent is read and cleared, also by a rank that has no use for it. All members.
template <class Coop, class Port>
HEDDLE_HD void discard_words(const Coop& coop, Port& port, const Call& call, uint64_t deadline) {
  for (int source = 0; source < call.ctx.topo.world; ++source) {
    if (!is_live(*call.state, source) || !call.state->words_from[source]) continue;
    const int64_t at = call.ctx.window.words(call.shape.kind, call.state->lane, source);
    const Header& header = header_from(port.local(), call, source);
    const int64_t first = at + int64_t{header.slots} * kWordBytes;
    const Wait note{.peer = source, .awaited = Awaited::rows, .wanted = tagged(0, call.state->seq), .deadline = deadline, .at = at};
    if (await(port, call, note) != Arrival::here) continue;
    const auto count = static_cast<int64_t>(load_relaxed(reinterpret_cast<const uint64_t*>(port.local() + at)) & 0xFFFF);
    deal_lanes(coop, 0, count * header.row_words * 2, [&](long half) {
      const int64_t word = first + half * int64_t{sizeof(uint64_t)};
      const Wait wait{.peer = source, .awaited = Awaited::rows, .wanted = 1, .deadline = deadline, .at = word};
      if (await(port, call, wait) == Arrival::here) store_relaxed(reinterpret_cast<uint64_t*>(port.local() + word), 0);
    });
  }
  coop.sync();
}

/// This rank refused the call: it reads nothing of it, but lets every peer finish. A credit for a round not yet landed is
/// harmless (nobody reads it), but the last one frees the lane, so it waits for all rows. All peers get the others first: one
/// peer's rows may wait for what another sends once it has its credits.
template <class Coop, class Port>
HEDDLE_HD bool discard_rows(const Coop& coop, Port& port, const Call& call) {
  const uint64_t deadline = port.now() + call.ctx.timeout_ns;
  discard_words(coop, port, call, deadline);
  deal_lanes(coop, 0, call.ctx.topo.world, [&](long peer) {
    const int source = static_cast<int>(peer);
    for (int round = 1; round < call.state->rounds[source]; ++round) give_credit(port, call, source);
  });
  deal_lanes(coop, 0, call.ctx.topo.world, [&](long peer) {
    const int source = static_cast<int>(peer);
    if (!call.state->words_from[source]) await_rows(port, call, source, call.state->count[source], deadline);
    give_credit(port, call, source);
  });
  return settle(coop, call.ctx);
}

}  // namespace heddle
