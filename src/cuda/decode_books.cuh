// The books of a decode pump: how a launch finds its place in the order of calls, and what it leaves for the next. Every block
// reads the ledger for itself; the last to have read it advances it.
#pragma once

#include <cstdint>

#include "cuda/decode_notes.cuh"
#include "cuda/owed.hpp"

namespace heddle {

__device__ inline uint32_t count_arrival(uint32_t* word) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(word) : "memory");
  return before;
}

/// By one thread.
__device__ __noinline__ inline Heard await_credit(const DirectPort& port, const Call& call, WordWait wait, int peer,
                                                  uint64_t sent) {
  const Cells& cells = cells_of(port.local(), call.ctx, peer);
  const uint64_t* credits = &cells.credits[static_cast<int>(call.shape.kind)][wait.lane];
  const auto poll = [&] { return load_acquire(credits) >= sent; };
  for (int attempt = 1; !poll(); ++attempt) {
    if (attempt % kPollsPerLook != 0) continue;
    const Heard heard = look_around(port, call, wait, peer, poll);
    if (heard != Heard::nothing) return heard;
  }
  return Heard::nothing;
}

__device__ __noinline__ inline void note_refusal_apart(const DirectPort& port, const Call& call) {
  note_refusal(port.local(), call);
}

__device__ __noinline__ inline void pay_owed_apart(const DirectPort& port, const Context& ctx, DecodeState* state, int lane) {
  pay_owed(port, ctx, state, lane, 32);
}

class DecodeBooks : protected DecodeNotes {
 protected:
  using DecodeNotes::DecodeNotes;

  /// By the clerk; followed by a meeting of the block.
  __device__ void open() {
    if (lane() == 0) {
      board_.unusual = board_.is_closer = 0;
      board_.gaps = 0;
    }
#pragma unroll 1
    for (int peer = lane(); peer < topo_.world; peer += 32) board_.heard[peer] = board_.lost[peer] = 0;
    if (decode_.sends()) read_ledger();
    else read_state();
  }

  /// By the clerk, after that meeting: nobody waits for any of it.
  __device__ void keep_books() {
    if (decode_.sends() && lane() == 0 && board_.opened != 0) {
#pragma unroll 1
      for (int peer = blockIdx.x; peer < topo_.world; peer += gridDim.x) {
        if (board_.live[peer] != 0) put_header_to(peer);
      }
    }
    __syncwarp();
    if (is_last_block()) pay_owed(port_, call_.ctx, site_.decode, lane(), 32);
    if (!decode_.sends()) return;
    bool is_last_to_read = lane() == 0 && count_arrival(&site_.decode->arrived) + 1 == gridDim.x;
    is_last_to_read = __any_sync(kAllLanes, is_last_to_read);
    if (is_last_to_read) advance_ledger();
  }

  /// What later steps and reports read of the call, by one warp of the last block, once it is known.
  __device__ void write_state() const {
    CallState& state = *call_.state;
#pragma unroll 1
    for (int peer = lane(); peer < topo_.world; peer += 32) {
      const bool counted = speaks(peer);
      state.count[peer] = counted ? board_.count[peer] : 0;
      state.tokens[peer] = counted ? board_.tokens[peer] : 0;
      state.rounds[peer] = 1;
      state.slots[peer] = call_.shape.max_tokens;
      state.refused[peer] = heard(peer) == Heard::refused;
      state.counted[peer] = counted;
      state.offers[peer] = state.direct_from[peer] = state.direct_to[peer] = 0;
      state.rounds_to[peer] = board_.live[peer];
      state.rows_before[peer] = call_.ctx.ledger->rows_seen[kind_][board_.lane][peer];
      state.words_from[peer] = 1;
      state.status[peer] = status_of(peer);
    }
    __syncwarp();
    if (lane() != 0) return;
    state.refused_by = -1;
    if (!decode_.receives()) return;
    bool refused = false;
#pragma unroll 1
    for (int peer = 0; peer < topo_.world; ++peer) refused |= heard(peer) == Heard::refused;
    if (refused) note_refusal_apart(port_, call_);
    call_.ctx.ledger->unreceived[kind_][board_.lane] = 0;
  }
  __device__ uint8_t status_of(int peer) const {
    const bool masked = board_.live[peer] == 0 || heard(peer) == Heard::masked;
    return static_cast<uint8_t>(masked ? SourceStatus::masked : SourceStatus::arrived);
  }


  /// By one thread of the block that pays what was owed before.
  __device__ void owe_credits() const {
    uint64_t peers = 0;
#pragma unroll 1
    for (int peer = 0; peer < topo_.world; ++peer) {
      if (board_.live[peer] != 0 && heard(peer) != Heard::masked) peers |= uint64_t{1} << peer;
    }
    site_.decode->owed = {.peers = peers, .kind = static_cast<uint32_t>(kind_), .lane = static_cast<uint32_t>(board_.lane)};
  }

 private:
  /// By one thread. The header is there for whoever cannot rely on the words; its release takes microseconds.
  __device__ void put_header_to(int peer) const {
    std::byte* at = port_.stage(
        {.peer = peer, .offset = call_.ctx.window.range(call_.shape.kind, board_.lane, topo_.rank)}, sizeof(Header));
    Header header;
    header.seq = board_.seq;
    header.incarnation = board_.incarnation;
    header.hash = decode_.hash;
    static_assert(kMostWordRanks <= 64, "they fit the first word of a mask");
#pragma unroll 1
    for (int other = 0; other < topo_.world; ++other) {
      header.mask.words[0] |= uint64_t{board_.open[other] == 0} << other;
    }
    header.kind = static_cast<uint32_t>(kind_);
    header.lane = static_cast<uint32_t>(board_.lane);
    header.slots = static_cast<int32_t>(region_.rows / kWordBytes);
    header.rounds = 1;
    header.row_words = static_cast<uint32_t>(region_.row_words);
    *reinterpret_cast<Header*>(at) = header;
    // The total, as nobody else writes the cell: an atomic add takes some 5 us to come back from a peer, a store one or two.
    port_.mark(peer, cell_of(topo_.rank, offsetof(Cells, headers)), board_.lane_calls + 1);
  }

  /// By the clerk: all that a call needs of the ledger and the peers' credits, in one wait for memory. Lanes come in pairs: each
  /// looks at one of the peer's two lanes, before it is known which matters.
  __device__ void read_ledger() {
    const Ledger& ledger = *call_.ctx.ledger;
    const int mine = lane() % kLanes;
    const int first = lane() / kLanes;
    const uint64_t calls = load_relaxed(&ledger.calls[kind_]);
    const uint64_t seq = load_relaxed(&ledger.seq) + 1;
    const uint64_t lane_calls = load_relaxed(&ledger.lane_calls[kind_][mine]);
    const uint64_t unreceived = load_relaxed(&ledger.unreceived[kind_][mine]);
    const uint64_t incarnation = load_relaxed(&ledger.incarnation);
    const bool faulted = load_relaxed(&ledger.fault_claimed) != 0;
    const OwedCredits owed = is_last_block() ? site_.decode->owed : OwedCredits{};
    const Credit ahead = look_at_credit(first, mine);
    const int call_lane = static_cast<int>(calls % kLanes);
    const bool mine_counts = mine == call_lane;
    // Where the lane's last call was received just before, all ranks may owe each other what they are about to wait for.
    if (owed.peers != 0 && owed.kind == static_cast<uint32_t>(kind_) && owed.lane == static_cast<uint32_t>(call_lane)) {
      pay_owed_apart(port_, call_.ctx, site_.decode, lane());
    }
    const WordWait wait{.seq = seq, .hash = decode_.hash, .deadline = port_.now() + call_.ctx.timeout_ns, .lane = call_lane};
    const bool not_received = __any_sync(kAllLanes, mine_counts && unreceived != 0);
    bool broken = faulted || not_received;
#pragma unroll 1
    for (int peer = first; peer < topo_.world; peer += 32 / kLanes) {
      const Credit credit = peer == first ? ahead : look_at_credit(peer, mine);
      if (!mine_counts) continue;
      board_.open[peer] = credit.open;
      board_.live[peer] = credit.open;
      if (!credit.open || broken || credit.seen >= credit.sent) continue;
      const Heard heard = await_credit(port_, call_, wait, peer, credit.sent);
      if (heard == Heard::fault) broken = true;
      if (heard == Heard::masked) board_.live[peer] = 0;
    }
    broken = __any_sync(kAllLanes, broken);
    if (lane() != call_lane) return;
    board_.wait = wait;
    board_.seq = seq;
    board_.incarnation = incarnation;
    board_.lane_calls = lane_calls;
    board_.lane = call_lane;
    board_.broken = broken;
    board_.opened = !broken;
    if (!not_received) return;
    claim_fault(call_.ctx, {.code = FaultCode::unreceived, .awaited = Awaited::credit, .kind = call_.shape.kind,
                            .peer = topo_.rank, .seq = seq, .seen = unreceived, .hash = decode_.hash});
  }

  struct Credit {
    uint64_t sent = 0;
    uint64_t seen = 0;
    bool open = false;
  };

  /// The acquire comes last: nothing after it may be asked for before it is there.
  __device__ Credit look_at_credit(int peer, int of_lane) const {
    if (peer >= topo_.world) return {};
    const Ledger& ledger = *call_.ctx.ledger;
    Credit credit;
    credit.sent = load_relaxed(&ledger.rounds_sent[kind_][of_lane][peer]);
    credit.open = load_relaxed(&ledger.mask[peer]) == static_cast<uint64_t>(Mask::open);
    credit.seen = load_acquire(&cells_of(port_.local(), call_.ctx, peer).credits[kind_][of_lane]);
    return credit;
  }

  /// By the clerk, in a launch that only receives: what the sending one left.
  __device__ void read_state() {
    const CallState& state = *call_.state;
    const Ledger& ledger = *call_.ctx.ledger;
    const uint64_t seq = state.seq, wanted = state.headers_wanted;
    const int call_lane = state.lane;
    const uint64_t incarnation = ledger.incarnation;
#pragma unroll 1
    for (int peer = lane(); peer < topo_.world; peer += 32) {
      board_.open[peer] = ledger.is_open(peer);
      board_.live[peer] = is_live(state, peer);
    }
    if (lane() != 0) return;
    board_.wait = {.seq = seq, .hash = decode_.hash, .deadline = port_.now() + call_.ctx.timeout_ns, .lane = call_lane};
    board_.seq = seq;
    board_.incarnation = incarnation;
    board_.lane_calls = wanted - 1;
    board_.lane = call_lane;
    board_.broken = ledger.is_faulted();
    board_.opened = !board_.broken;
  }

  /// By one warp of the clerk's block. Nobody reads the ledger any more in this launch, but for masks and faults.
  __device__ void advance_ledger() const {
    Ledger& ledger = *call_.ctx.ledger;
    CallState& state = *call_.state;
    const int call_lane = board_.lane;
#pragma unroll 1
    for (int peer = lane(); peer < topo_.world; peer += 32) {
      if (board_.live[peer] != 0) ++ledger.rounds_sent[kind_][call_lane][peer];
    }
    __syncwarp();
    if (lane() != 0) return;
    ledger.seq = board_.seq;
    ++ledger.calls[kind_];
    ledger.lane_calls[kind_][call_lane] = board_.lane_calls + 1;
    ledger.unreceived[kind_][call_lane] = decode_.receives() ? 0 : board_.seq;
    state.lane = call_lane;
    state.headers_wanted = board_.lane_calls + 1;
    site_.decode->arrived = 0;
    store_release(&state.seq, board_.seq);  // last: who waits long reads the rest
  }
};

}  // namespace heddle
