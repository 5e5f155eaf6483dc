// Ranks that a deadline masks in a call of words (I10): all blocks go by one decision, and what was placed of a source that was
// lost later is taken back when they have ended. What is here is rare, and in functions of its own.
#pragma once

#include <cstdint>

#include "cuda/decode_block.cuh"
#include "device/coop.cuh"
#include "protocol/combine_args.hpp"
#include "protocol/dispatch_rows.hpp"

namespace heddle {

inline constexpr uint64_t kDecisions = 4;

/// A word of DecodeState::decided: whether a source counts in the call `seq`. The first block that asks decides.
__device__ inline Heard decide_source(uint64_t* word, uint64_t seq, Heard own) {
  uint64_t seen = *const_cast<volatile uint64_t*>(word);
  while (seen / kDecisions != seq) {
    const uint64_t wanted = seq * kDecisions + static_cast<uint64_t>(own);
    const uint64_t before = atomicCAS(reinterpret_cast<unsigned long long*>(word), seen, wanted);
    if (before == seen) return own;
    seen = before;
  }
  return static_cast<Heard>(seen % kDecisions);
}

/// By all workers, each for one source, after they have heard all: afterwards every block lays out the same rows. True: a
/// source counts that this block gave up too early; its words are there by now.
__device__ __noinline__ inline bool agree_on_source(DecodeBoard& board, DecodeState* state, const Topology& topo) {
  const int source = static_cast<int>(threadIdx.x);
  if (source >= topo.world) return false;
  const auto heard = static_cast<Heard>(board.heard[source]);
  const Heard own = board.live[source] == 0 ? Heard::masked : heard;
  const Heard decision = decide_source(&state->decided[source], board.seq, own);
  if (decision == own) return false;
  const bool counts = decision == Heard::nothing;
  board.heard[source] = static_cast<uint8_t>(decision);
  board.lost[source] = decision == Heard::masked;
  if (counts) board.live[source] = 1;
  return counts;
}

/// By the closer's block: places of a source's rows stay, empty, and its hits leave the handle.
__device__ __noinline__ inline void drop_lost_sources(const Block& coop, const DispatchArgs& args, uint64_t lost) {
  const Topology& topo = args.call.ctx.topo;
  const int local = topo.num_local(topo.rank);
  const auto masked = static_cast<uint8_t>(SourceStatus::masked);
  for (int source = 0; source < topo.world; ++source) {
    if ((lost >> source & 1) == 0) continue;
    if (is_leader(coop)) args.route.status[source] = args.call.state->status[source] = masked;
    const int64_t first = args.route.recv_offset[source];
    deal(coop, 0, args.route.recv_offset[source + 1] - first, [&](long i) { drop_row(coop, args, first + i); });
    for (int expert = 0; expert < local; ++expert) {
      const int32_t* row = args.route.expert_row + expert * topo.world + source;
      const int64_t end = source + 1 < topo.world ? row[1] : args.out.expert_offsets[expert] + args.out.counts[expert];
      deal(coop, row[0], end < args.out.rows ? end : args.out.rows, [&](long at) { clear_row(coop, args, at); });
    }
  }
  coop.sync();
  if (args.out.ready.is_set()) complete_ready(coop, args.out.ready, local);
}

/// By the closer's block: what the last block's clerk could not know of all others.
__device__ inline void mask_lost_owners(const Block& coop, const CombineArgs& args, uint64_t lost) {
  deal_lanes(coop, 0, args.call.ctx.topo.world, [&](long owner) {
    if ((lost >> owner & 1) == 0) return;
    args.out.status[owner] = args.call.state->status[owner] = static_cast<uint8_t>(SourceStatus::masked);
  });
}

}  // namespace heddle
