// Where rows lie at their receiver in a low-latency dispatch: from the counts in the sources' notes; and what is said of all rows.
#pragma once

#include <cstdint>

#include "cuda/decode_plan.cuh"
#include "protocol/dispatch_gaps.hpp"
#include "protocol/dispatch_layout.hpp"

namespace heddle {

// What is rare, or waited for by nobody, in functions of its own: what is not run should not be fetched.

__device__ __noinline__ inline void leave_out_apart(const DispatchArgs& args) {
  if (args.out.num_dropped != nullptr) *args.out.num_dropped = num_dropped(args);
  leave_out_dropped(Solo(), args);
}

/// By `threads` threads, whole warps of them: clears the payload of rows that nothing comes to.
__device__ __noinline__ inline void zero_rows(const DispatchArgs& args, int64_t first, int64_t end, int thread, int threads) {
  const OutputView& out = args.out;
  const int64_t bytes = args.call.shape.payload_bytes;
  const Lanes lanes{thread % 32, 32};
  for (int64_t row = first + thread / 32; row < end; row += threads / 32) {
    lanes_fill(lanes, out.x + row * bytes, 0, static_cast<size_t>(bytes));
    for (int i = lanes.lane; i < args.call.shape.scale_words; i += 32) out.scales.row(row)[i * out.scales.col_stride] = 0;
  }
}

class DecodePlaces : protected DecodePlan {
 protected:
  __device__ DecodePlaces(const DirectPort& port, const DispatchArgs& args, const Site& site, const DecodeSite& decode,
                          DecodeBoard& board, std::byte* memory)
      : DecodePlan(port, args, site, decode, board, memory),
        start_(reinterpret_cast<int32_t*>(memory + decode.places_at)), total_(start_ + local_ + 1),
        before_(total_ + local_) {}

  __device__ int32_t& rows_from(int source, int expert) const { return before_[source * local_ + expert]; }

  /// All counts, each by one thread: the words of all sources come together.
  __device__ void hear() const {
    const int pairs = (local_ + 1) / 2;
    const int each = pairs + 1;
#pragma unroll 1
    for (int item = threadIdx.x; item < topo_.world * each; item += kDecodeThreads) {
      const int source = divide(item, decode_.notes), pair = item - source * each - 1;
      if (board_.live[source] == 0) continue;
      if (source == topo_.rank && !own_by_words()) hear_own(pair);
      else if (pair < 0) hear_note(source);
      else hear_pair(source, pair);
    }
  }
  __device__ void hear_own(int pair) const {
    if (pair < 0) {
      board_.count[topo_.rank] = sets_.all(topo_.rank);
      board_.tokens[topo_.rank] = a_.plan.tokens;
      return;
    }
#pragma unroll 1
    for (int expert = 2 * pair; expert < 2 * pair + 2 && expert < local_; ++expert) {
      rows_from(topo_.rank, expert) = sets_.all(topo_.world + first_ + expert);
    }
  }
  __device__ void hear_note(int source) const {
    int32_t count = 0, tokens = 0;
    if (!read_note_timed(source, count, tokens)) return;
    board_.count[source] = count;
    board_.tokens[source] = tokens;
  }
  __device__ void hear_pair(int source, int pair) const {
    uint64_t word = 0;
    if (!await_tagged(source, words_from(source) + region_.table + pair * int64_t{sizeof(uint64_t)}, word)) return;
    rows_from(source, 2 * pair) = static_cast<int32_t>(word & 0xFFFF);
    if (2 * pair + 1 < local_) rows_from(source, 2 * pair + 1) = static_cast<int32_t>(word >> 16 & 0xFFFF);
  }

  /// rows_from() becomes the rows of the sources before; total_ and start_ of each expert. All threads, with meetings.
  __device__ void lay_out() const {
#pragma unroll 1
    for (int expert = threadIdx.x; expert < local_; expert += kDecodeThreads) {
      int32_t sum = 0;
#pragma unroll 1
      for (int source = 0; source < topo_.world; ++source) {
        const int32_t rows = speaks(source) ? rows_from(source, expert) : 0;
        rows_from(source, expert) = sum;
        sum += rows;
      }
      total_[expert] = sum;
    }
    if (threadIdx.x == kDecodeThreads - 1) offset_sources();
    const Groups groups = groups_of(a_.call);
    const bool is_slab = groups.layout == Layout::slab;
#pragma unroll 1
    for (int expert = threadIdx.x; is_slab && expert <= local_; expert += kDecodeThreads) {
      start_[expert] = static_cast<int32_t>(expert * groups.slab_rows);
    }
    meet_workers();
    if (is_slab) return;
    if (warp() == 0) start_groups();
    meet_workers();
  }
  __device__ void offset_sources() const {
    int32_t end = board_.offset[0] = 0;
    board_.others = board_.most = 0;
#pragma unroll 1
    for (int source = 0; source < topo_.world; ++source) {
      if (speaks(source)) end += board_.count[source];
      board_.offset[source + 1] = end;
      if (!sends_here(source)) continue;
      ++board_.others;
      if (board_.count[source] > board_.most) board_.most = board_.count[source];
    }
  }
  __device__ void start_groups() const {
    const Groups groups = groups_of(a_.call);
    int32_t start = 0;
#pragma unroll 1
    for (int first = 0; first < local_; first += 32) {
      const int expert = first + lane();
      const auto own = static_cast<int32_t>(expert < local_ ? groups.next(0, total_[expert]) : 0);
      const int32_t sum = sum_of_lanes_to(own);
      if (expert < local_) start_[expert] = start + sum - own;
      start += __shfl_sync(kAllLanes, sum, 31);
    }
    if (lane() == 0) start_[local_] = start;
  }

  __device__ bool sends_here(int source) const {
    return speaks(source) && (source != topo_.rank || own_by_words());
  }

  /// By the last block: what is said of the call as a whole.
  __device__ void write_tables() const {
    const OutputView& out = a_.out;
#pragma unroll 1
    for (int i = threadIdx.x; i <= topo_.world; i += kDecodeThreads) a_.route.recv_offset[i] = board_.offset[i];
#pragma unroll 1
    for (int i = threadIdx.x; i < topo_.world; i += kDecodeThreads) {
      a_.route.source_tokens[i] = speaks(i) ? board_.tokens[i] : 0;
      a_.route.status[i] = status_of(i);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < local_; i += kDecodeThreads) {
      out.counts[i] = total_[i];
      if (out.total_counts != nullptr) out.total_counts[i] += total_[i];
    }
#pragma unroll 1
    for (int i = threadIdx.x; i <= local_; i += kDecodeThreads) out.expert_offsets[i] = start_[i];
#pragma unroll 1
    for (int i = threadIdx.x; i < local_ * topo_.world; i += kDecodeThreads) {
      const int expert = i / topo_.world, source = i % topo_.world;
      const int32_t before = rows_from(source, expert);
      a_.route.expert_row[i] = start_[expert] + before;
      if (out.layout_range == nullptr) continue;
      const int32_t end = source + 1 < topo_.world ? rows_from(source + 1, expert) : total_[expert];
      out.layout_range[i] = int64_t{before} << 32 | static_cast<int64_t>(end - before);
    }
    const bool drops = start_[local_] > out.rows;
    if (!drops && threadIdx.x == 0 && out.num_dropped != nullptr) *out.num_dropped = 0;
    if (drops) {
      meet_workers();
      if (threadIdx.x == 0) leave_out_apart(a_);
    }
    if (!out.ready.is_set()) return;
    meet_workers();
#pragma unroll 1
    for (int i = threadIdx.x; i < local_; i += kDecodeThreads) add_ready(out.ready.words + i, pieces_of(i));
  }

  /// Of an expert that is told of (protocol/ready.hpp): parts of the rows that are kept, and the tables.
  __device__ uint64_t pieces_of(int expert) const {
    const int64_t room = a_.out.rows - start_[expert];
    const int64_t kept = room < total_[expert] ? room > 0 ? room : 0 : total_[expert];
    return static_cast<uint64_t>(kept * region_.parts + 1);
  }

  /// By each warp when it has nothing else to do. Those behind the experts' rows are claimed.
  __device__ void clear_gaps() const {
    const int64_t rows = a_.out.rows;
    const bool is_slab = a_.call.shape.layout == Layout::slab;
#pragma unroll 1
    for (int expert = claim_gap(); expert < local_; expert = claim_gap()) {
      const bool is_last = expert + 1 == local_;
      const int64_t end = is_last ? is_slab ? rows : 0 : start_[expert + 1];
      clear_rows(int64_t{start_[expert]} + total_[expert], end < rows ? end : rows, lane(), 32);
    }
    if (is_slab) return;
    const int64_t first = local_ > 0 ? int64_t{start_[local_ - 1]} + total_[local_ - 1] : 0;
    clear_rows(first, rows, blockIdx.x * kDecodeThreads + threadIdx.x, gridDim.x * kDecodeThreads);
  }
  /// Block b has experts b, b + blocks, ...
  __device__ int claim_gap() const {
    int claimed = 0;
    if (lane() == 0) claimed = atomicAdd(&board_.gaps, 1);
    return __shfl_sync(kAllLanes, claimed, 0) * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  }
  __device__ void clear_rows(int64_t first, int64_t end, int thread, int threads) const {
    const OutputView& out = a_.out;
#pragma unroll 1
    for (int64_t row = first + thread; row < end; row += threads) {
      if (out.row_weights != nullptr) out.row_weights[row] = 0.0f;
      if (out.row_source != nullptr) out.row_source[row] = -1;
      if (out.row_token != nullptr) out.row_token[row] = -1;
    }
    if (out.zero_padding) zero_rows(a_, first, end, thread, threads);
  }

  int32_t* const start_;   // [local + 1] first row of each group
  int32_t* const total_;   // [local]
  int32_t* const before_;  // [ranks][local]
};

}  // namespace heddle
