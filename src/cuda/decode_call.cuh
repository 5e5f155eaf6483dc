// What the decode pumps of dispatch and combine have in common: how a launch finds its place in the order of calls, and how
// it ends.
//
// Every block reads the ledger for itself; the last to have read it (the clerk) advances it, off everybody's way. Blocks end
// when their own work does. Only where a host waits, or something went wrong, one block (the closer) stays until all are
// done.
#pragma once

#include <cstdint>

#include "cuda/decode.hpp"
#include "cuda/owed.hpp"
#include "cuda/steps.cuh"
#include "cuda/words.cuh"

namespace heddle {

inline constexpr int kDecodeWarps = kDecodeThreads / 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

/// In a block's own memory, as far as registers are better spent on rows.
struct DecodeBoard {
  WordWait wait;
  uint64_t seq;
  uint64_t incarnation;
  uint64_t lane_calls;  // of the lane, before this call
  int32_t lane;
  uint32_t opened;      // 1: it may begin; nothing changes it later
  uint32_t broken;      // 1: it has ended in a fault
  uint32_t unusual;
  uint32_t is_closer;
  uint8_t open[kMostWordRanks];   // neither masked nor removed
  uint8_t live[kMostWordRanks];   // takes part in this call
  uint8_t heard[kMostWordRanks];  // a Heard: why a source sends no rows
  int32_t count[kMostWordRanks];  // rows from each source
  int32_t tokens[kMostWordRanks];
  int32_t offset[kMostWordRanks + 1];
  int32_t others;  // sources whose rows come by words
  int32_t most;    // rows of one of them
};

/// The next launch may begin to start; it waits before it reads anything.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ inline void await_launch_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline uint32_t count_arrival(uint32_t* word) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(word) : "memory");
  return before;
}

/// Bitmasks of tokens, by columns.
struct TokenBits {
  uint32_t* bits;
  uint16_t* before;  // [columns][words + 1]
  int words;

  __device__ TokenBits(std::byte* memory, int columns, int tokens) {
    words = TokenSets::of(tokens).words;
    bits = reinterpret_cast<uint32_t*>(memory);
    before = reinterpret_cast<uint16_t*>(bits + columns * words);
  }

  __device__ bool has(int column, int token) const { return bits[column * words + token / 32] >> (token % 32) & 1; }
  __device__ int earlier(int column, int token) const {
    const uint32_t* set = bits + column * words;
    const int below = __popc(set[token / 32] & ((1u << (token % 32)) - 1));
    return (is_counted() ? before[column * (words + 1) + token / 32] : count_in(set, token / 32)) + below;
  }
  __device__ int all(int column) const {
    return is_counted() ? before[column * (words + 1) + words] : count_in(bits + column * words, words);
  }
  /// The same for the clerk, who does not wait for count().
  __device__ int count_all(int column) const { return count_in(bits + column * words, words); }
  /// Few words are faster counted each time than once for all.
  __device__ bool is_counted() const { return words > 4; }

  /// By all threads of the block.
  __device__ void clear(int columns) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < columns * words; i += kDecodeThreads) bits[i] = 0;
  }
  /// By all threads but the clerk's, which then meet.
  __device__ void count(int columns) const {
    if (!is_counted()) return;
#pragma unroll 1
    for (int column = threadIdx.x; column < columns; column += kDecodeThreads) {
      int sum = 0;
#pragma unroll 1
      for (int word = 0; word < words; ++word) {
        before[column * (words + 1) + word] = static_cast<uint16_t>(sum);
        sum += __popc(bits[column * words + word]);
      }
      before[column * (words + 1) + words] = static_cast<uint16_t>(sum);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kDecodeThreads) : "memory");
  }

 private:
  __device__ static int count_in(const uint32_t* set, int count) {
    int sum = 0;
#pragma unroll 1
    for (int word = 0; word < count; ++word) sum += __popc(set[word]);
    return sum;
  }
};

/// A counter and the total that it is waited for to show.
struct Counter {
  const std::byte* at;
  uint64_t wanted;
};

/// By one thread: waits for the source's header, which differs from this rank's, and claims the fault.
__device__ __noinline__ inline void claim_other_call(const DirectPort& port, const Call& call, WordWait wait, int source,
                                                     Counter headers) {
  const std::byte* never = reinterpret_cast<const std::byte*>(&call.ctx.ledger->told);
  while (look_at_source(port, call, wait, source, {.words = {}, .tagged = {never}, .seq = ~wait.seq}) == Heard::nothing) {
    if (load_acquire(&call.state->seq) != wait.seq) continue;
    if (load_acquire(reinterpret_cast<const uint64_t*>(headers.at)) < headers.wanted) continue;
    return claim_mismatch(call, source, header_from(port.local(), call, source));
  }
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

__device__ inline bool is_unusual(const Site& site) { return *const_cast<volatile uint32_t*>(&site.decode->unusual) != 0; }

class DecodeCall {
 public:
  __device__ DecodeCall(const DirectPort& port, const Call& call, const Site& site, const DecodeSite& decode,
                        DecodeBoard& board)
      : port_(port), call_(call), site_(site), decode_(decode), board_(board), topo_(call.ctx.topo),
        region_(decode.region), wait_(board.wait), kind_(static_cast<int>(call.shape.kind)) {}

  __device__ static int lane() { return threadIdx.x & 31; }
  __device__ static int warp() { return threadIdx.x >> 5; }
  __device__ static bool is_last_block() { return blockIdx.x == gridDim.x - 1; }
  /// This warp among all; items are dealt to it and every workers() further on. Neighbouring items go to different blocks.
  __device__ static int worker() { return warp() * gridDim.x + blockIdx.x; }
  /// The one warp of each block that moves no rows.
  __device__ static bool is_clerk() { return warp() == kDecodeWarps; }
  /// All warps of the block but the clerk.
  __device__ static void meet_workers() { asm volatile("bar.sync 1, %0;" ::"n"(kDecodeThreads) : "memory"); }
  /// The same; true for all if it is for one.
  __device__ static bool any_worker(bool here) {
    int any;
    asm volatile(
        "{ .reg .pred p, q; setp.ne.s32 p, %1, 0; bar.red.or.pred q, 1, %2, p; selp.s32 %0, 1, 0, q; }"
        : "=r"(any)
        : "r"(int{here}), "n"(kDecodeThreads)
        : "memory");
    return any != 0;
  }
  /// The workers go on when the clerk has opened the call, each when it comes to it.
  __device__ static void let_workers_go() { asm volatile("bar.arrive 3, %0;" ::"n"(kDecodeBlock) : "memory"); }
  __device__ static void await_clerk() { asm volatile("bar.sync 3, %0;" ::"n"(kDecodeBlock) : "memory"); }
  /// The clerk goes on when all workers have come by.
  __device__ static void let_clerk_go() { asm volatile("bar.arrive 2, %0;" ::"n"(kDecodeBlock) : "memory"); }
  __device__ static void await_workers() { asm volatile("bar.sync 2, %0;" ::"n"(kDecodeBlock) : "memory"); }
  __device__ static int workers() { return kDecodeWarps * gridDim.x; }
  /// This warp's first item of those dealt on after `dealt` others.
  __device__ static int first_after(int dealt) {
    int item = worker() - dealt;
#pragma unroll 1
    while (item < 0) item += workers();
    return item;
  }
  __device__ static int divide(int number, const Divider& by) {
    return by.divisor == 1 ? number : static_cast<int>(__umulhi(static_cast<uint32_t>(number), by.reciprocal));
  }

  /// By the clerk; followed by a meeting of the block.
  __device__ void open() {
    if (lane() == 0) board_.unusual = board_.is_closer = 0;
#pragma unroll 1
    for (int peer = lane(); peer < topo_.world; peer += 32) board_.heard[peer] = 0;
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

  __device__ bool is_broken() const { return *const_cast<volatile uint32_t*>(&board_.broken) != 0; }
  __device__ void note_fault() const { *const_cast<volatile uint32_t*>(&board_.broken) = 1; }
  __device__ Heard heard(int source) const {
    return static_cast<Heard>(*const_cast<volatile uint8_t*>(&board_.heard[source]));
  }
  __device__ bool speaks(int source) const { return board_.live[source] != 0 && heard(source) == Heard::nothing; }

  /// Notes why a source sends nothing, if it does not.
  __device__ void note(int source, Heard heard) const {
    if (heard == Heard::nothing) return;
    if (heard == Heard::fault) return note_fault();
    *const_cast<volatile uint8_t*>(&board_.heard[source]) = static_cast<uint8_t>(heard);
  }

  /// Where the words lie that `source` writes at `peer` in this call.
  __device__ std::byte* words_at(int peer, int source) const {
    return reinterpret_cast<std::byte*>(port_.word_at(peer, decode_.words[board_.lane] + source * decode_.pitch));
  }
  __device__ std::byte* words_from(int source) const {
    return port_.local() + decode_.words[board_.lane] + source * decode_.pitch;
  }

  /// By one thread. The header is there for whoever cannot rely on the words; its release takes microseconds.
  __device__ void put_header_to(int peer) const {
    std::byte* at = port_.stage(
        {.peer = peer, .offset = call_.ctx.window.range(call_.shape.kind, board_.lane, topo_.rank)}, sizeof(Header));
    Header header;
    header.seq = board_.seq;
    header.incarnation = board_.incarnation;
    header.hash = decode_.hash;
#pragma unroll 1
    for (int other = 0; other < topo_.world; ++other) {
      if (board_.open[other] == 0) header.mask.add(other);
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

  /// A source whose note came sends no rows: it has left. By all lanes of a warp.
  __device__ void note_loss(int source, Heard heard) const {
    note_fault();
    if (heard == Heard::fault || lane() != 0) return;
    claim_fault(call_.ctx, {.code = FaultCode::peer_fault, .awaited = Awaited::rows, .kind = call_.shape.kind,
                            .peer = source, .seq = wait_.seq, .wanted = wait_.seq, .hash = wait_.hash});
  }

  /// The words of the note, by one thread.
  __device__ void put_note_to(int peer, int32_t count, int32_t tokens) const {
    std::byte* note = words_at(peer, topo_.rank) + region_.note;
    const auto counts = static_cast<uint32_t>(count) | static_cast<uint32_t>(tokens) << 16;
    store_word(note, {tagged(counts, board_.seq), tagged(check_of(decode_.hash, board_.incarnation), board_.seq)});
  }

  /// By one thread: waits for one tagged word of a source; true if it came.
  __device__ bool await_tagged(int source, const std::byte* at, uint64_t& word) const {
    const auto poll = [&] {
      word = load_tagged(at);
      return has_tag(word, wait_.seq);
    };
    for (int attempt = 1; !poll(); ++attempt) {
      if (attempt % kPollsPerLook != 0) continue;
      if (is_broken() || heard(source) != Heard::nothing) return false;
      const Heard heard = look_at_source(port_, call_, wait_, source, {.words = {}, .tagged = {at}, .seq = wait_.seq});
      note(source, heard);
      if (heard != Heard::nothing) return false;
    }
    return true;
  }

  /// By one thread: the note's counts, checked. False: there are none.
  __device__ bool read_note(int source, int32_t& count, int32_t& tokens) const {
    const std::byte* note = words_from(source) + region_.note;
    const Word both = load_word(note);
    uint64_t counts = both.low, check = both.high;
    if (!has_tag(counts, wait_.seq) && !await_tagged(source, note, counts)) return false;
    if (!has_tag(check, wait_.seq) && !await_tagged(source, note + sizeof(uint64_t), check)) return false;
    if (static_cast<uint32_t>(check) != check_of(decode_.hash, board_.incarnation)) {
      note_mismatch(source);
      return false;
    }
    count = static_cast<int32_t>(counts & 0xFFFF);
    tokens = static_cast<int32_t>(counts >> 16 & 0xFFFF);
    return true;
  }

  /// The source speaks of another call; its header says of which.
  __device__ void note_mismatch(int source) const {
    const int64_t counter = cell_of(source, offsetof(Cells, headers));
    claim_other_call(port_, call_, wait_, source, {port_.local() + counter, board_.lane_calls + 1});
    note_fault();
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

  /// By all threads: the block's end. `close(faulted)` is called by all threads of the closer, if there is one.
  template <class Close>
  __device__ void end(const Close& close) {
    const int source = static_cast<int>(threadIdx.x);
    if (source < topo_.world && heard(source) == Heard::refused) board_.unusual = 1;
    __syncthreads();
    const bool unusual = board_.unusual != 0 || is_broken();
    const bool closes = unusual || (site_.ticket != 0 && blockIdx.x == 0);
    DecodeState& state = *site_.decode;
    if (is_last_block() && threadIdx.x == 0 && decode_.receives() && !is_broken()) owe_credits();
    if (threadIdx.x == 0) {
      if (unusual) store_gpu(&state.unusual, 1);
      if (closes) board_.is_closer = atomicCAS(&state.closer, 0u, 1u) == 0;
      finish(&state.done[blockIdx.x], mark());
    }
    if (!closes) return;
    __syncthreads();
    if (board_.is_closer == 0) return;
    await_all();
    close(call_.ctx.ledger->is_faulted());
    if (threadIdx.x != 0) return;
    store_gpu(&state.unusual, 0);
    store_gpu(&state.closer, 0);
  }

 protected:
  __device__ int64_t cell_of(int source, size_t field) const {
    return call_.ctx.window.cells(source) + static_cast<int64_t>(field) +
           (int64_t{kind_} * kLanes + board_.lane) * int64_t{sizeof(uint64_t)};
  }

  const DirectPort& port_;
  const Call& call_;
  const Site& site_;
  const DecodeSite& decode_;
  DecodeBoard& board_;
  const Topology topo_;
  const WordRegion& region_;
  const WordWait& wait_;
  const int kind_;

 private:
  __device__ static void store_gpu(uint32_t* word, uint32_t value) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
  }
  /// After all that the block did.
  __device__ static void finish(uint64_t* word, uint64_t value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
  }
  /// Unlike that of any other launch since the reset.
  __device__ uint64_t mark() const { return board_.seq * 4 + decode_.phases; }

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
    const Credit ahead = look_at_credit(first, mine);
    const int call_lane = static_cast<int>(calls % kLanes);
    const bool mine_counts = mine == call_lane;
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

  /// By one thread of the block that pays what was owed before.
  __device__ void owe_credits() const {
    uint64_t peers = 0;
#pragma unroll 1
    for (int peer = 0; peer < topo_.world; ++peer) {
      if (board_.live[peer] != 0 && heard(peer) != Heard::masked) peers |= uint64_t{1} << peer;
    }
    site_.decode->owed = {.peers = peers, .kind = static_cast<uint32_t>(kind_), .lane = static_cast<uint32_t>(board_.lane)};
  }

  /// All waits of the other blocks have deadlines, so this ends.
  __device__ void await_all() const {
    const uint64_t deadline = port_.now() + site_.timeout_ns;
#pragma unroll 1
    for (int block = threadIdx.x; block < static_cast<int>(gridDim.x); block += kDecodeBlock) {
      uint64_t seen = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(&site_.decode->done[block]) : "memory");
      } while (seen != mark() && port_.now() < deadline);
    }
    __syncthreads();
  }
};

}  // namespace heddle
