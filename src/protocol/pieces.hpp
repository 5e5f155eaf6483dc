// Pieces: parts of rows that are announced one by one, so that a receiver works on a round while the rest of it is on
// its way. Beside the row counter, the sender stores a tag for each piece: {seq, round}, which grows. A tag that shows
// the round implies the piece's bytes. Who does not look at tags loses nothing but time; Context::tags says that all
// ranks store them.
#pragma once

#include <cstdint>

#include "protocol/call.hpp"

namespace heddle {

/// How the rows of a call are cut: `parts` pieces of `part_bytes` each, the last one shorter. The tag of part p of
/// the row in place i is number i * parts + p.
struct Pieces {
  int parts = 0;  // 0: no tags, there are fewer than places
  int64_t part_bytes = 0;

  HEDDLE_HD static Pieces of(const Call& call, int64_t places, int wanted_parts) {
    const int64_t bytes = call.shape.payload_bytes;
    const int64_t tags = call.ctx.window.num_tags();
    if (!call.ctx.tags || places > tags) return {};
    constexpr int64_t kWhole = 512;  // bytes that a warp moves at a time
    const int64_t most = places > 0 ? tags / places : 1;
    const int64_t parts = wanted_parts < most ? wanted_parts : most;
    const int64_t part = (ceil_div(bytes, parts) + kWhole - 1) / kWhole * kWhole;
    return {.parts = static_cast<int>(bytes > 0 ? ceil_div(bytes, part) : 1), .part_bytes = part};
  }
};

/// Pieces of a dispatch whose slots are `places`: whole rows.
HEDDLE_HD inline Pieces dispatch_pieces(const Call& call, int64_t places) { return Pieces::of(call, places, 1); }

/// Where in a window the tags lie that `source` stores there in this call.
HEDDLE_HD inline int64_t tag_at(const Call& call, int source, int64_t tag) {
  return call.ctx.window.tags(call.shape.kind, call.state->lane, source) + tag * int64_t{sizeof(uint64_t)};
}

HEDDLE_HD inline uint64_t tag_value(uint64_t seq, int round) {
  return seq << 24 | (static_cast<uint64_t>(round) + 1) % (uint64_t{1} << 24);
}

/// The counter of row puts, for ports that count each put by itself.
template <class Port>
HEDDLE_HD int64_t counter_of_puts(const Port&, const Call& call) {
  if constexpr (requires { Port::kFlushCounts; }) return 0;
  else return counter_at(call, call.ctx.topo.rank, Awaited::rows);
}

/// After the rows were announced by the counter, so after a worker_sync(): tags [first, first + count) at the peer.
template <class Coop, class Port>
HEDDLE_HD void mark_pieces(const Coop& coop, Port& port, const Call& call, int peer, int round, int64_t first,
                           int64_t count) {
  if constexpr (requires { port.mark(0, int64_t{}, uint64_t{}); }) {
    const uint64_t value = tag_value(call.state->seq, round);
    for (int64_t i = coop.lane(); i < count; i += coop.lanes()) {
      port.mark(peer, tag_at(call, call.ctx.topo.rank, first + i), value);
    }
  }
}

}  // namespace heddle
