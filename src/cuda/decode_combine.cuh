// A low-latency combine: a warp sums a part of a token's hits and writes it to the token's rank; another one, there, sums the
// ranks' parts as they come. The own rank's part stays in registers, rounded like the others'. Leaves what Combine leaves.
#pragma once

#include <cstdint>

#include "cuda/decode_lost.cuh"
#include "cuda/decode_terms.cuh"
#include "protocol/combine.hpp"
#include "protocol/poison.hpp"

namespace heddle {

/// By all threads of the closer's block.
__device__ __noinline__ inline void close_decode(const DirectPort& port, const CombineArgs& args, const Site& site,
                                                 bool received, bool faulted) {
  if (received && !faulted && site.decode->lost != 0) mask_lost_owners(Block(), args, site.decode->lost);
  if (received && (faulted || (is_unusual(site) && is_refused_unheard(args.call, site)))) poison_combine(Block(), args);
  report_step(Block(), port, args.call, site, [&](Report& report) {
    if (received) report_results(args, report);
  });
}

/// kMasks: a deadline may mask an owner, so a warp has all parts of a token, and an owner's row counts whole or not at all.
template <bool kMasks>
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
      static_assert(kMostWordRanks < kDecodeThreads);
      const bool has_offset = static_cast<int>(threadIdx.x) <= topo_.world;
      const int32_t offset = has_offset ? __ldg(a_.route.recv_offset + threadIdx.x) : 0;  // waited for with the sets
      mark_sets();
      if (has_offset) board_.offset[threadIdx.x] = offset;
      meet_workers();
      if (is_last_block()) let_clerk_go();
      let_next_start();
      sets_.count(topo_.world);
      move();
    }
    finish_call();
  }

 private:
  /// Which tokens went to which rank, by all workers: 32 tokens and a rank are a warp's.
  __device__ void mark_sets() const {
    constexpr int kAhead = 4;  // that are asked for together
    const int items = sets_.words * topo_.world;
#pragma unroll 1
    for (int first = warp(); first < items; first += kAhead * kDecodeWarps) {
      bool goes[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int item = first + i * kDecodeWarps;
        const int tile = divide(item, decode_.ranks);
        const int token = tile * 32 + lane();
        const bool is_here = item < items && token < a_.plan.tokens;
        goes[i] = is_here && __ldg(a_.plan.in_rank + token * topo_.world + item - tile * topo_.world) != 0;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const unsigned all = __ballot_sync(kAllLanes, goes[i]);
        const int item = first + i * kDecodeWarps;
        const int tile = divide(item, decode_.ranks);
        if (lane() == 0 && item < items) sets_.bits[(item - tile * topo_.world) * sets_.words + tile] = all;
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

  /// A part of a row: of a token of another rank, or of one of this rank's own.
  struct Job {
    bool is_push = false;
    int source = 0;  // whose token
    int slot = -1;   // of the token among the source's here; -1: it has no hits here, or their sum comes by words
    int token = 0;   // an own one
    int part = 0;
  };

  __device__ std::byte* part_in(std::byte* words, int slot, int part) const {
    return words + region_.rows +
           (int64_t{slot} * region_.row_words + part * region_.part_words + lane()) * kWordBytes;
  }

  __device__ void push(const Job& job, const PackedPart& packed) const {
    std::byte* row = part_in(words_at(job.source, topo_.rank), job.slot, job.part);
    const int payload = region_.payload_words(job.part);
#pragma unroll
    for (int group = 0; group < kPartGroups; ++group) {
      if (group * 32 + lane() < payload) send_word(row + group * 32 * kWordBytes, packed.of[group]);
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

  /// `own`: what this rank's hits come to, if job.slot says that there are any. Where owners may be masked, of those in `here`.
  __device__ void sum_ranks(const Job& job, const PackedPart& own, uint64_t here = ~uint64_t{0}) const {
    PartSums sums;
    summer_.start(sums, job.token, job.part);
#pragma unroll 1
    for (int owner = 0; owner < topo_.world; ++owner) {
      if (!sets_.has(owner, job.token) || board_.live[owner] == 0) continue;
      if (kMasks && (here >> owner & 1) == 0) continue;
      PackedPart theirs = own;
      const bool is_here = owner == topo_.rank && job.slot >= 0;
      if (!is_here && !take_result(owner, sets_.earlier(owner, job.token), job.part, theirs)) {
        if (is_broken()) return;
        continue;
      }
#pragma unroll
      for (int group = 0; group < kPartGroups; ++group) PartSummer::add(sums.of[group], theirs.of[group], 1.0f);
    }
    summer_.finish(sums, job.token, job.part);
  }

  /// Owners whose rows for a token are here, whole. All lanes.
  __device__ uint64_t owners_here(const Job& job) const {
    uint64_t here = 0;
#pragma unroll 1
    for (int owner = 0; owner < topo_.world; ++owner) {
      if (!sets_.has(owner, job.token) || board_.live[owner] == 0) continue;
      const bool stays = owner == topo_.rank && job.slot >= 0;
      if (stays || has_row(owner, sets_.earlier(owner, job.token))) here |= uint64_t{1} << owner;
    }
    return here;
  }
  __device__ bool has_row(int owner, int slot) const {
    if (heard(owner) != Heard::nothing || is_broken()) return false;
    const std::byte* row = part_in(words_from(owner), slot, 0);
    const auto poll = [&] {
      bool all = true;
#pragma unroll 1
      for (int word = lane(); word < region_.row_words; word += 32) {
        all = all && load_word(row + (word - lane()) * kWordBytes).is_here();
      }
      return all;
    };
    // What never comes: a look around cannot tell whether all of the row is here, so it is asked for once more.
    const auto* never = reinterpret_cast<const std::byte*>(&call_.ctx.ledger->told);
    const Wanted wanted{.words = {}, .tagged = {never, nullptr}, .seq = ~wait_.seq};
    const Heard heard = await_words(port_, call_, wait_, owner, wanted, poll);
    if (heard == Heard::nothing || (heard == Heard::masked && __all_sync(kAllLanes, poll()))) return true;
    note(owner, heard);
    return false;
  }

  /// All lanes. False: it does not come.
  __device__ bool take_result(int owner, int slot, int part, PackedPart& result) const {
    if (!kMasks && heard(owner) != Heard::nothing) return false;
    std::byte* row = part_in(words_from(owner), slot, part);
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

  /// First the items that others wait for, then those of this rank's tokens. All of them sum hits in one place, which is long.
  __device__ void move() {
    if (decode_.sends() && is_late() && is_open()) put_late_weights();
    const int others = topo_.world - (own_by_words() ? 0 : 1);
    const int pushes = pushes_here() ? most_received() * others * region_.parts : 0;
    const int items = pushes + (decode_.receives() ? a_.plan.tokens * (kMasks ? 1 : region_.parts) : 0);
#pragma unroll 1
    for (int item = worker(); item < items; item += workers()) {
      const Job job = item < pushes ? push_job(item, others) : own_job(kMasks ? (item - pushes) * region_.parts : item - pushes);
      if (job.is_push && job.slot < 0) continue;
      if constexpr (kMasks) {
        if (!job.is_push) {
          if (!is_open() || is_broken() || !sum_whole_token(job)) break;
          continue;
        }
      }
      PackedPart sum{};
      if (job.slot >= 0) {
        float late = 0.0f;
        if (is_late() && (!is_open() || !await_late(job.source, job.slot, late))) continue;
        sum = summer_.sum_hits(term_of(board_.offset[job.source] + job.slot, late), job.part);
      }
      if (!is_open() || is_broken()) break;
      if (!job.is_push) sum_ranks(job, sum);
      else if (board_.live[job.source] != 0) push(job, sum);
    }
    is_open();  // the barrier counts on every warp
  }

  /// False: the call has ended in a fault.
  __device__ bool sum_whole_token(Job job) const {
    LaneTerm term;
    if (job.slot >= 0) {
      float late = 0.0f;
      if (!await_late(job.source, job.slot, late)) return false;
      term = term_of(board_.offset[job.source] + job.slot, late);
    }
    const uint64_t here = owners_here(job);
    if (is_broken()) return false;
#pragma unroll 1
    for (job.part = 0; job.part < region_.parts; ++job.part) {
      sum_ranks(job, job.slot >= 0 ? summer_.sum_hits(term, job.part) : PackedPart{}, here);
    }
    return true;
  }

  __device__ Job push_job(int item, int others) const {
    const int row = divide(item, decode_.parts);
    const int slot = others == 1 ? row : row / others;
    const int source = nth_source(row - slot * others);
    return {.is_push = true, .source = source, .slot = slot < received_from_rank(source) ? slot : -1,
            .part = item - row * region_.parts};
  }
  __device__ Job own_job(int item) const {
    const int token = divide(item, decode_.parts);
    const bool is_here = own_is_here() && sets_.has(topo_.rank, token);
    return {.source = topo_.rank, .slot = is_here ? sets_.earlier(topo_.rank, token) : -1, .token = token,
            .part = item - token * region_.parts};
  }
  __device__ int most_received() const {
    int most = 0;
#pragma unroll 1
    for (int source = 0; source < topo_.world; ++source) {
      if (goes_to(source) && received_from_rank(source) > most) most = received_from_rank(source);
    }
    return most;
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
      if (board_.live[owner] != 0 && !is_broken() && read_note_timed(owner, count, tokens)) {
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
