// A low-latency combine: a warp sums a part of a token's hits and writes it to the token's rank; another one, there, sums the
// ranks' parts as they come. The own rank's part stays in registers, rounded like the others'. Leaves what Combine leaves.
#pragma once

#include <cstdint>

#include "cuda/decode_call.cuh"
#include "device/rows.hpp"
#include "protocol/combine.hpp"
#include "protocol/poison.hpp"

namespace heddle {

inline constexpr int kPartGroups = kCombinePart / 32 / kLaneColumns;  // pieces of eight columns of a lane
static_assert(kPartGroups == 2, "a wait looks again for two words of a lane");

/// A lane's columns of a part of a row.
struct PartSums {
  float of[kPartGroups][kLaneColumns];
};

__device__ inline int part_column(int part, int group) {
  return part * kCombinePart + (group * 32 + static_cast<int>(threadIdx.x & 31)) * kLaneColumns;
}

/// What a lane knows of one column of a received row.
struct LaneTerm {
  int32_t row = -1;
  float weight = 1.0f;
};

// What is rare, in functions of its own and by value: other types, odd addresses, biases.

/// All lanes.
__device__ __noinline__ inline PartSums sum_odd(const CombineArgs& args, LaneTerm term, int part) {
  PartSums sums{};
  for (unsigned left = __ballot_sync(kAllLanes, term.row >= 0); left != 0; left &= left - 1) {
    const int from = __ffs(static_cast<int>(left)) - 1;
    const std::byte* row = args.experts.x + __shfl_sync(kAllLanes, term.row, from) * args.experts.x_stride;
    const float weight = __shfl_sync(kAllLanes, term.weight, from);
#pragma unroll
    for (int group = 0; group < kPartGroups; ++group) {
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) {
        const int column = part_column(part, group) + i;
        if (column >= args.hidden) continue;
        sums.of[group][i] = __fmaf_rn(weight, load_column(args.experts.dtype, row, column), sums.of[group][i]);
      }
    }
  }
  return sums;
}

__device__ __noinline__ inline PartSums bias_of(const CombineArgs& args, int token, int part) {
  PartSums sums{};
  const int64_t at = int64_t{token} * args.hidden * static_cast<int64_t>(sizeof(bf16));
#pragma unroll
  for (int group = 0; group < kPartGroups; ++group) {
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      const int column = part_column(part, group) + i;
      if (column >= args.hidden) continue;
      float bias = load_column(DType::bf16, args.out.bias[0] + at, column);
      if (args.out.bias[1] != nullptr) bias += load_column(DType::bf16, args.out.bias[1] + at, column);
      sums.of[group][i] = bias;
    }
  }
  return sums;
}

/// By all threads of the closer's block.
__device__ __noinline__ inline void close_decode(const DirectPort& port, const CombineArgs& args, const Site& site,
                                                 bool received, bool faulted) {
  if (received && (faulted || (is_unusual(site) && is_refused_unheard(args.call, site)))) poison_combine(Block(), args);
  report_step(Block(), port, args.call, site, [&](Report& report) {
    if (received) report_results(args, report);
  });
}

class DecodeCombine : DecodeCall {
 public:
  static constexpr int kGroups = kPartGroups;
  static constexpr int kAhead = 4;  // rows that are loaded together

  __device__ DecodeCombine(const DirectPort& port, const CombineArgs& args, const Site& site, const DecodeSite& decode,
                           DecodeBoard& board, std::byte* memory)
      : DecodeCall(port, args.call, site, decode, board), a_(args), topk_(args.call.shape.topk),
        weights_(args.call.shape.weights), sets_(memory, topo_.world, args.plan.tokens) {}

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
  using Sums = PartSums;
  /// Eight bf16 columns each, packed.
  struct Packed {
    uint4 of[kGroups];
  };

  __device__ bool is_late() const { return weights_ == Weights::late; }
  /// Results can be summed in this launch: the weights are known, or come in it.
  __device__ bool pushes() const { return is_late() ? decode_.receives() : decode_.sends(); }
  /// Their own results go by words where sums are made in another launch than the results.
  __device__ bool own_by_words() const { return !decode_.receives() || !pushes(); }
  __device__ bool own_is_here() const { return decode_.receives() && pushes(); }

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

  // --- as an owner ---

  /// Column lane() of the i-th received row; `late` is the source's weight for it. All lanes.
  __device__ LaneTerm term_of(int i, float late) const {
    LaneTerm term;
    int32_t id = -1;
    const int64_t at = int64_t{i} * topk_ + lane();
    if (lane() < topk_) {
      term.row = a_.route.row_of[at];
      if (weights_ != Weights::none) id = a_.route.recv_ids[at];
      if (weights_ == Weights::at_owner) term.weight = a_.route.recv_weights[at];
      if (is_late()) term.weight = late;
    }
    if (weights_ == Weights::none) return term;
    const unsigned alike = __match_any_sync(kAllLanes, id >= 0 ? id : -1 - lane());
    if (!__any_sync(kAllLanes, __popc(alike) > 1)) return term;
    const float own = term.weight;
#pragma unroll 1
    for (int later = 1; later < topk_; ++later) {
      const float other = __shfl_sync(kAllLanes, own, later);
      if (later > lane() && (alike >> later & 1) != 0) term.weight += other;
    }
    return term;
  }

  /// The sum of the hits, by k ascending, rounded. All lanes.
  __device__ Packed sum_hits(const LaneTerm& term, int part) const {
    const bool usual = a_.experts.dtype == DType::bf16 &&
                       (reinterpret_cast<uintptr_t>(a_.experts.x) | static_cast<uintptr_t>(a_.experts.x_stride)) % 16 == 0;
    if (!usual) return packed(sum_odd(a_, term, part));
    Sums sums{};
    unsigned left = __ballot_sync(kAllLanes, term.row >= 0);
#pragma unroll 1
    while (left != 0) {
      const std::byte* rows[kAhead];
      float weights[kAhead];
      int count = 0;
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        if (left == 0) continue;
        const int column = __ffs(static_cast<int>(left)) - 1;
        left &= left - 1;
        rows[n] = a_.experts.x + __shfl_sync(kAllLanes, term.row, column) * a_.experts.x_stride;
        weights[n] = __shfl_sync(kAllLanes, term.weight, column);
        ++count;
      }
      add_rows_of(sums, rows, weights, count, part);
    }
    return packed(sums);
  }
  __device__ static Packed packed(const Sums& sums) {
    Packed rounded;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) store_columns(reinterpret_cast<bf16*>(&rounded.of[group]), sums.of[group]);
    return rounded;
  }

  __device__ void add_rows_of(Sums& sums, const std::byte* (&rows)[kAhead], const float (&weights)[kAhead], int count,
                            int part) const {
    uint4 loaded[kAhead][kGroups];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int column = part_column(part, group);
        if (n < count && column < a_.hidden) {
          loaded[n][group] = *reinterpret_cast<const uint4*>(rows[n] + column * int64_t{sizeof(bf16)});
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      if (n >= count) continue;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) add(sums.of[group], loaded[n][group], weights[n]);
    }
  }
  __device__ static void add(float (&sums)[kLaneColumns], const uint4& columns, float weight) {
    float values[kLaneColumns];
    LaneColumns<bf16>{{columns}}.widen(values);
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) sums[i] = __fmaf_rn(weight, values[i], sums[i]);
  }

  /// The source's weights for a slot, one a lane. False: they do not come.
  __device__ bool await_late(int source, int slot, float& late) const {
    if (!is_late()) return true;
    if (source == topo_.rank && !own_by_words()) {
      late = own_weight(slot);
      return true;
    }
    const std::byte* at =
        words_from(source) + region_.weights + (int64_t{slot} * topk_ + lane()) * int64_t{sizeof(uint64_t)};
    uint64_t word = tagged(0, wait_.seq);
    const auto poll = [&] {
      if (lane() < topk_) word = load_tagged(at);
      return has_tag(word, wait_.seq);
    };
    const Wanted wanted{.words = {}, .tagged = {lane() < topk_ ? at : nullptr}, .seq = wait_.seq};
    const Heard heard = await_words(port_, call_, wait_, source, wanted, poll);
    note(source, heard);
    late = __uint_as_float(static_cast<uint32_t>(word));
    return heard == Heard::nothing;
  }
  __device__ float own_weight(int slot) const {
    const int token = a_.route.recv_token[board_.offset[topo_.rank] + slot];
    return lane() < topk_ ? a_.out.weights_in[int64_t{token} * topk_ + lane()] : 0.0f;
  }

  __device__ void push_part(int source, int slot, int part) {
    float late = 0.0f;
    if (is_late() && (!is_open() || !await_late(source, slot, late))) return;
    const Packed packed = sum_hits(term_of(board_.offset[source] + slot, late), part);
    if (!is_open() || board_.live[source] == 0) return;
    std::byte* row = words_at(source, topo_.rank) + region_.rows +
                     (int64_t{slot} * region_.row_words + part * region_.part_words) * kWordBytes;
    const int payload = region_.payload_words(part);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
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

  /// To all owners, before anybody waits for anything.
  __device__ void put_late_weights() const {
    const int each = a_.plan.tokens * topk_;
#pragma unroll 1
    for (int item = blockIdx.x * kDecodeThreads + threadIdx.x; item < each * topo_.world;
         item += gridDim.x * kDecodeThreads) {
      const int owner = item / each, token = item % each / topk_, k = item % topk_;
      if (owner == topo_.rank || board_.live[owner] == 0 || !sets_.has(owner, token)) continue;
      const float weight = a_.out.weights_in[int64_t{token} * topk_ + k];
      store_tagged(words_at(owner, topo_.rank) + region_.weights +
                       (int64_t{sets_.earlier(owner, token)} * topk_ + k) * int64_t{sizeof(uint64_t)},
                   tagged(__float_as_uint(weight), board_.seq));
    }
  }

  /// False: the call has ended in a fault.
  __device__ bool sum_part(int token, int part) {
    Packed own{};
    const bool owns = own_is_here() && sets_.has(topo_.rank, token);
    if (owns) {
      const int slot = sets_.earlier(topo_.rank, token);
      float late = 0.0f;
      await_late(topo_.rank, slot, late);
      own = sum_hits(term_of(board_.offset[topo_.rank] + slot, late), part);
    }
    if (!is_open() || is_broken()) return false;
    Sums sums;
    start(sums, token, part);
#pragma unroll 1
    for (int owner = 0; owner < topo_.world; ++owner) {
      if (!sets_.has(owner, token) || board_.live[owner] == 0) continue;
      Packed theirs = own;
      if ((owner != topo_.rank || !owns) && !take_result(owner, sets_.earlier(owner, token), part, theirs)) {
        if (is_broken()) return false;
        continue;
      }
#pragma unroll
      for (int group = 0; group < kGroups; ++group) add(sums.of[group], theirs.of[group], 1.0f);
    }
    finish(sums, token, part);
    return true;
  }

  /// All lanes. False: it does not come.
  __device__ bool take_result(int owner, int slot, int part, Packed& result) const {
    if (heard(owner) != Heard::nothing) return false;
    std::byte* row = words_from(owner) + region_.rows +
                     (int64_t{slot} * region_.row_words + part * region_.part_words) * kWordBytes + lane() * kWordBytes;
    const int payload = region_.payload_words(part);
    const Word full{~uint64_t{0}, ~uint64_t{0}};
    Word words[kGroups] = {full, full};
    const auto poll = [&] {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
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
    for (int group = 0; group < kGroups; ++group) {
      if (group * 32 + lane() < payload) store_word(row + group * 32 * kWordBytes, {});
      result.of[group] = words[group].data();
    }
    return true;
  }

  __device__ void start(Sums& sums, int token, int part) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (float& sum : sums.of[group]) sum = 0.0f;
    }
    if (a_.out.bias[0] != nullptr) sums = bias_of(a_, token, part);
  }
  __device__ void finish(const Sums& sums, int token, int part) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int column = part_column(part, group);
      if (column >= a_.hidden) continue;
      std::byte* to = a_.out.x + token * a_.out.x_stride + column * int64_t{sizeof(bf16)};
      uint4 packed;
      store_columns(reinterpret_cast<bf16*>(&packed), sums.of[group]);
      if (reinterpret_cast<uintptr_t>(to) % sizeof(uint4) == 0) *reinterpret_cast<uint4*>(to) = packed;
      else store_odd(to, packed);
    }
  }
  __device__ static void store_odd(std::byte* to, const uint4& packed) {
    uint4 left = packed;
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(left.x);
      left = make_uint4(left.x >> 16 | left.y << 16, left.y >> 16 | left.z << 16, left.z >> 16 | left.w << 16, left.w >> 16);
    }
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

  const CombineArgs& a_;
  const int topk_;
  const Weights weights_;
  const TokenBits sets_;
  bool knows_call_ = false;
};

}  // namespace heddle
