// A low-latency combine: a warp sums a part of a token's hits and writes it to the token's rank; another one, there, sums the
// ranks' parts as they come. The own rank's part stays in registers, rounded like the others'. Leaves what Combine leaves.
#pragma once

#include <cstdint>

#include "cuda/decode_terms.cuh"
#include "protocol/combine.hpp"
#include "protocol/poison.hpp"

namespace heddle {

/// By all threads of the closer's block.
__device__ __noinline__ inline void close_decode(const DirectPort& port, const CombineArgs& args, const Site& site,
                                                 bool received, bool faulted) {
  if (received && (faulted || (is_unusual(site) && is_refused_unheard(args.call, site)))) poison_combine(Block(), args);
  report_step(Block(), port, args.call, site, [&](Report& report) {
    if (received) report_results(args, report);
  });
}

class DecodeCombine : DecodeTerms {
 public:
  __device__ DecodeCombine(const DirectPort& port, const CombineArgs& args, const Site& site, const DecodeSite& decode,
                           DecodeBoard& board, std::byte* memory)
      : DecodeTerms(port, args, site, decode, board, memory), summer_(args) {}

  __device__ void run() {
    await_launch_before();
    if (is_clerk()) {
      open();
      __syncwarp();
      let_workers_go();
      let_next_start();
      if (decode_.sends() && board_.opened != 0) put_notes();
      keep_books();
      if (is_last_block()) await_workers();
      if (is_last_block() && decode_.receives() && board_.opened != 0) close_books();
      else if (is_last_block()) write_state();
    } else {
#pragma unroll 1
      for (int peer = threadIdx.x; peer <= topo_.world; peer += kDecodeThreads) {
        board_.offset[peer] = __ldg(a_.route.recv_offset + peer);
      }
      mark_sets();
      meet_workers();
      if (is_last_block()) let_clerk_go();
      let_next_start();
      sets_.count(topo_.world);
      move();
    }
    finish_call();
  }

 private:
  /// Which tokens went to which rank, by all workers.
  __device__ void mark_sets() const {
    constexpr int kRanksAhead = 8;  // that are asked for together
#pragma unroll 1
    for (int tile = warp(); tile < sets_.words; tile += kDecodeWarps) {
      const int token = tile * 32 + lane();
      const bool is_here = token < a_.plan.tokens;
      const uint8_t* in_rank = a_.plan.in_rank + int64_t{is_here ? token : 0} * topo_.world;
#pragma unroll 1
      for (int rank = 0; rank < topo_.world; rank += kRanksAhead) {
        bool goes[kRanksAhead];
#pragma unroll
        for (int i = 0; i < kRanksAhead; ++i) goes[i] = is_here && rank + i < topo_.world && __ldg(in_rank + rank + i) != 0;
#pragma unroll
        for (int i = 0; i < kRanksAhead; ++i) {
          const unsigned all = __ballot_sync(kAllLanes, goes[i]);
          if (lane() == 0 && rank + i < topo_.world) sets_.bits[(rank + i) * sets_.words + tile] = all;
        }
      }
    }
  }

  /// Sums of this rank's own rows need nothing of the call; what comes after them does. All lanes of a worker. False: it
  /// has not begun.
  __device__ bool is_open() {
    if (!knows_call_) await_clerk();
    knows_call_ = true;
    return board_.opened != 0;
  }

  __device__ int received_from_rank(int source) const { return board_.offset[source + 1] - board_.offset[source]; }

  __device__ void push_part(int source, int slot, int part) {
    float late = 0.0f;
    if (is_late() && (!is_open() || !await_late(source, slot, late))) return;
    const PackedPart packed = summer_.sum_hits(term_of(board_.offset[source] + slot, late), part);
    if (!is_open() || board_.live[source] == 0) return;
    std::byte* row = words_at(source, topo_.rank) + region_.rows +
                     (int64_t{slot} * region_.row_words + part * region_.part_words) * kWordBytes;
    const int payload = region_.payload_words(part);
#pragma unroll
    for (int group = 0; group < kPartGroups; ++group) {
      const int word = group * 32 + lane();
      if (word < payload) send_word(row + word * kWordBytes, packed.of[group]);
    }
  }

  // --- as the tokens' source ---

  /// By the clerk of block b for peers b, b + blocks, ...
  __device__ void put_notes() const {
    if (lane() != 0) return;
#pragma unroll 1
    for (int peer = blockIdx.x; peer < topo_.world; peer += gridDim.x) {
      if (board_.live[peer] == 0) continue;
      const int32_t* offset = a_.route.recv_offset + peer;
      put_note_to(peer, __ldg(offset + 1) - __ldg(offset), a_.plan.tokens);
    }
  }

  /// False: the call has ended in a fault.
  __device__ bool sum_part(int token, int part) {
    PackedPart own{};
    const bool owns = own_is_here() && sets_.has(topo_.rank, token);
    if (owns) {
      const int slot = sets_.earlier(topo_.rank, token);
      float late = 0.0f;
      await_late(topo_.rank, slot, late);
      own = summer_.sum_hits(term_of(board_.offset[topo_.rank] + slot, late), part);
    }
    if (!is_open() || is_broken()) return false;
    PartSums sums;
    summer_.start(sums, token, part);
#pragma unroll 1
    for (int owner = 0; owner < topo_.world; ++owner) {
      if (!sets_.has(owner, token) || board_.live[owner] == 0) continue;
      PackedPart theirs = own;
      if ((owner != topo_.rank || !owns) && !take_result(owner, sets_.earlier(owner, token), part, theirs)) {
        if (is_broken()) return false;
        continue;
      }
#pragma unroll
      for (int group = 0; group < kPartGroups; ++group) PartSummer::add(sums.of[group], theirs.of[group], 1.0f);
    }
    summer_.finish(sums, token, part);
    return true;
  }

  /// All lanes. False: it does not come.
  __device__ bool take_result(int owner, int slot, int part, PackedPart& result) const {
    if (heard(owner) != Heard::nothing) return false;
    std::byte* row = words_from(owner) + region_.rows +
                     (int64_t{slot} * region_.row_words + part * region_.part_words) * kWordBytes + lane() * kWordBytes;
    const int payload = region_.payload_words(part);
    const Word full{~uint64_t{0}, ~uint64_t{0}};
    Word words[kPartGroups] = {full, full};
    const auto poll = [&] {
#pragma unroll
      for (int group = 0; group < kPartGroups; ++group) {
        if (group * 32 + lane() < payload) words[group] = load_word(row + group * 32 * kWordBytes);
      }
      bool here = true;
#pragma unroll
      for (const Word& word : words) here = here && word.is_here();
      return here;
    };
    const Wanted wanted{.words = {lane() < payload ? row : nullptr,
                                  32 + lane() < payload ? row + 32 * kWordBytes : nullptr},
                        .tagged = {},
                        .seq = wait_.seq};
    const Heard heard = await_words(port_, call_, wait_, owner, wanted, poll);
    note(owner, heard);
    if (heard != Heard::nothing) return false;
#pragma unroll
    for (int group = 0; group < kPartGroups; ++group) {
      if (group * 32 + lane() < payload) store_word(row + group * 32 * kWordBytes, {});
      result.of[group] = words[group].data();
    }
    return true;
  }

  // --- the whole ---

  __device__ void move() {
    if (decode_.sends() && is_late() && is_open()) put_late_weights();
    const int pushed = pushes() ? push() : 0;
#pragma unroll 1
    for (int item = first_after(pushed); decode_.receives() && item < a_.plan.tokens * region_.parts; item += workers()) {
      const int token = divide(item, decode_.parts);
      if (!sum_part(token, item - token * region_.parts)) break;
    }
    is_open();  // the barrier counts on every warp
  }

  /// Returns how many items were dealt.
  __device__ int push() {
    const int others = topo_.world - (own_by_words() ? 0 : 1);
    int most = 0;
#pragma unroll 1
    for (int source = 0; source < topo_.world; ++source) {
      if (goes_to(source) && received_from_rank(source) > most) most = received_from_rank(source);
    }
    const int items = most * others * region_.parts;
#pragma unroll 1
    for (int item = worker(); item < items; item += workers()) {
      const int row = divide(item, decode_.parts);
      const int slot = others == 1 ? row : row / others;
      const int source = nth_source(row - slot * others);
      if (slot < received_from_rank(source)) push_part(source, slot, item - row * region_.parts);
      if (knows_call_ && is_broken()) break;
    }
    return items;
  }
  __device__ bool goes_to(int source) const { return source != topo_.rank || own_by_words(); }
  __device__ int nth_source(int n) const {
    int source = 0;
#pragma unroll 1
    for (;; ++source) {
      if (goes_to(source) && n-- == 0) return source;
    }
  }

  /// By the last block's clerk: a handle of another batch would show in the counts.
  __device__ void close_books() const {
#pragma unroll 1
    for (int owner = lane(); owner < topo_.world; owner += 32) {
      int32_t count = 0, tokens = 0;
      if (board_.live[owner] != 0 && !is_broken() && read_note(owner, count, tokens)) {
        board_.count[owner] = count;
        board_.tokens[owner] = tokens;
        if (count != sets_.count_all(owner)) note_mismatch(owner);
      }
      a_.out.status[owner] = status_of(owner);
    }
    __syncwarp();
    write_state();
  }

  __device__ void finish_call() {
    end([&](bool faulted) { close_decode(port_, a_, site_, decode_.receives(), faulted); });
  }

  const PartSummer summer_;
  bool knows_call_ = false;
};

}  // namespace heddle
