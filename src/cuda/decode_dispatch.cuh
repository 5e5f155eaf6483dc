// A low-latency dispatch: a warp casts a part of a token's row and writes it to every rank that wants it; another one, there,
// takes it to the rows of the token's hits. Positions follow from bitmasks that every block makes of all ids, and from the
// counts in the others' notes. Leaves what Dispatch leaves.
#pragma once

#include <cstdint>

#include "cuda/decode_call.cuh"
#include "device/quantise.hpp"
#include "protocol/dispatch_gaps.hpp"
#include "protocol/dispatch_layout.hpp"

namespace heddle {

/// What one lane knows of one column of a token's route, at its receiver.
struct LaneHit {
  int32_t expert = -1;   // local, or -1
  int32_t ordinal = -1;  // or -1: not the first column of the expert
  float weight = 0.0f;
};

/// A part of a row as it travels: 16 columns of a lane, and in every lane the part's scale words.
struct CastPart {
  uint4 columns;
  uint4 scales;
};

/// What one lane knows of one column of a token of this rank.
struct LaneRoute {
  int32_t id = -1;
  int32_t owner = -1;
  int32_t ordinal = -1;
  int32_t slot = 0;             // of the token, at the owner
  bool is_first_of_owner = false;
  float weight = 0.0f;
};

/// By all threads of the closer's block.
__device__ __noinline__ inline void close_decode(const DirectPort& port, const DispatchArgs& args, const Site& site,
                                                 bool received, bool faulted) {
  if (received && (faulted || (is_unusual(site) && is_refused_unheard(args.call, site)))) poison_dispatch(Block(), args);
  report_step(Block(), port, args.call, site, [&](Report& report) {
    if (received) report_drops(args, report);
  });
}

// What is rare, or waited for by nobody, in functions of its own: what is not run should not be fetched.

__device__ __noinline__ inline void leave_out_apart(const DispatchArgs& args) {
  if (args.out.num_dropped != nullptr) *args.out.num_dropped = num_dropped(args);
  leave_out_dropped(args);
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

/// A part on its way to the rows of its hits here: its `slot`-th row of the source.
struct Moved {
  int source = 0;
  int slot = 0;
  int token = 0;
  int part = 0;
  CastPart cast{};
  LaneHit hit;
};

class DecodeDispatch : DecodeCall {
 public:
  static constexpr int kColumnsEach = 16;  // of a lane

  __device__ DecodeDispatch(const DirectPort& port, const DispatchArgs& args, const Site& site, const DecodeSite& decode,
                            DecodeBoard& board, std::byte* memory)
      : DecodeCall(port, args.call, site, decode, board), a_(args), first_(topo_.first_expert(topo_.rank)),
        local_(topo_.num_local(topo_.rank)), topk_(args.call.shape.topk), hidden_(args.call.shape.payload_bytes),
        sets_(memory, topo_.world + topo_.experts, args.plan.tokens) {
    const int64_t bytes = TokenSets{sets_.words}.bytes(topo_.world + topo_.experts);
    start_ = reinterpret_cast<int32_t*>(memory + round_up(bytes, 16));
    total_ = start_ + local_ + 1;
    before_ = total_ + local_;
    owners_ = reinterpret_cast<uint8_t*>(before_ + int64_t{local_} * topo_.world);
  }

  __device__ void run() {
    if (decode_.sends() && !is_clerk()) {
      sets_.clear(topo_.world + topo_.experts);
      list_owners();
    }
    __syncthreads();
    await_launch_before();
    Ahead ahead;
    if (is_clerk()) open();
    else if (decode_.sends()) ahead = work_ahead();
    __syncthreads();
    let_next_start();
    if (is_clerk()) {
      keep_books();
      if (decode_.receives() && is_last_block() && board_.opened != 0) await_workers();
      if (is_last_block()) write_state();
    } else if (board_.opened != 0) {
      if (decode_.sends()) sets_.count(topo_.world + topo_.experts);
      move(ahead);
    }
    finish_call();
  }

 private:
  /// This warp's first item, as far as it can be done before the call is open.
  struct Ahead {
    CastPart cast{};
    int32_t id = -1;
    float weight = 0.0f;
  };

  __device__ bool own_by_words() const { return !decode_.receives() || !decode_.sends(); }
  __device__ int items() const { return a_.plan.tokens * region_.parts; }

  // --- routes ---

  /// What Topology::owner_of() says; a division for each id would be most of the routing.
  __device__ void list_owners() const {
#pragma unroll 1
    for (int expert = threadIdx.x; expert < topo_.experts; expert += kDecodeThreads) {
      const auto product = static_cast<uint32_t>((expert + 1) * topo_.world - 1);
      owners_[expert] = static_cast<uint8_t>(product / static_cast<uint32_t>(topo_.experts));
    }
  }

  /// By all workers. A lane has one token.
  __device__ void mark_sets() const {
    constexpr int kAhead = 8;  // ids that are asked for together
#pragma unroll 1
    for (int tile = warp(); tile < sets_.words; tile += kDecodeWarps) {
      const int token = tile * 32 + lane();
      const bool is_here = token < a_.plan.tokens;
      const int32_t* ids = a_.plan.ids + int64_t{is_here ? token : 0} * topk_;
      uint64_t ranks = 0;
#pragma unroll 1
      for (int k = 0; k < topk_; k += kAhead) {
        int32_t some[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) some[i] = is_here && k + i < topk_ ? __ldg(ids + k + i) : -1;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (some[i] < 0) continue;
          ranks |= uint64_t{1} << owners_[some[i]];
          atomicOr(&sets_.bits[(topo_.world + some[i]) * sets_.words + tile], 1u << lane());
        }
      }
#pragma unroll 1
      for (int rank = 0; rank < topo_.world; ++rank) {
        const unsigned goes = __ballot_sync(kAllLanes, (ranks >> rank & 1) != 0);
        if (lane() == 0) sets_.bits[rank * sets_.words + tile] = goes;
      }
    }
  }

  /// Column lane() of a token.
  __device__ void load_column(int token, int32_t& id, float& weight) const {
    id = -1;
    weight = 0.0f;
    if (lane() >= topk_) return;
    const int at = token * topk_ + lane();
    id = __ldg(a_.plan.ids + at);
    if (a_.batch.weights != nullptr) weight = __ldg(a_.batch.weights + at);
  }

  /// By all lanes of a warp.
  __device__ LaneRoute route_of(int token, int32_t id, float weight) const {
    LaneRoute route;
    route.id = id;
    route.weight = weight;
    if (route.id >= 0) route.owner = owners_[route.id];
    const int unlike_others = -1 - lane();
    const bool first_of_expert = is_lowest(route.id >= 0 ? route.id : unlike_others);
    route.is_first_of_owner = is_lowest(route.id >= 0 ? route.owner : unlike_others) && route.id >= 0;
    if (route.id < 0) return route;
    if (first_of_expert) route.ordinal = sets_.earlier(topo_.world + route.id, token);
    route.slot = sets_.earlier(route.owner, token);
    return route;
  }
  /// Whether no lower lane has the same value.
  __device__ static bool is_lowest(int value) {
    return __ffs(static_cast<int>(__match_any_sync(kAllLanes, value))) - 1 == lane();
  }

  // --- the cast ---

  __device__ Ahead work_ahead() const {
    Ahead ahead;
    uint4 columns[2]{};
    const bool has_item = worker() < items();
    if (has_item) {
      load_columns_of(worker(), columns);
      load_column(divide(worker(), decode_.parts), ahead.id, ahead.weight);
    }
    mark_sets();
    if (has_item) ahead.cast = cast(columns);
    return ahead;
  }

  __device__ void load_columns_of(int item, uint4 (&columns)[2]) const {
    const int token = divide(item, decode_.parts);
    const int column = (item - token * region_.parts) * kDispatchPart + lane() * kColumnsEach;
    columns[0] = columns[1] = make_uint4(0, 0, 0, 0);
    if (column >= hidden_) return;
    const std::byte* x = a_.batch.x + token * a_.batch.x_stride + column * int64_t{sizeof(bf16)};
    if (reinterpret_cast<uintptr_t>(x) % sizeof(uint4) == 0) {
      columns[0] = reinterpret_cast<const uint4*>(x)[0];
      columns[1] = reinterpret_cast<const uint4*>(x)[1];
      return;
    }
    uint32_t words[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto* pair = reinterpret_cast<const uint16_t*>(x) + 2 * i;
      words[i] = pair[0] | uint32_t{pair[1]} << 16;
    }
    columns[0] = make_uint4(words[0], words[1], words[2], words[3]);
    columns[1] = make_uint4(words[4], words[5], words[6], words[7]);
  }

  /// The same bits as quantise_row(): eight lanes share a block.
  __device__ CastPart cast(const uint4 (&columns)[2]) const {
    float x[2][kLaneColumns];
    LaneColumns<bf16>{{columns[0]}}.widen(x[0]);
    LaneColumns<bf16>{{columns[1]}}.widen(x[1]);
    const QuantiseScale scale = scale_of(largest_finite(x));
    uint2 q[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (float& value : x[half]) value *= scale.multiplier;
      store_columns(reinterpret_cast<e4m3*>(&q[half]), x[half]);
    }
    return {.columns = make_uint4(q[0].x, q[0].y, q[1].x, q[1].y), .scales = scale_words(scale)};
  }

  /// With the mode as a constant, most of quantise_scale() is settled when compiled.
  __device__ QuantiseScale scale_of(float largest) const {
    QuantiseArgs quantise{.x = nullptr, .x_dtype = DType::bf16, .hidden = 0, .mode = Quantise::fp8, .q = nullptr,
                          .scales = nullptr};
    if (a_.call.shape.quantise == Quantise::fp8) return quantise_scale(quantise, {.largest = largest});
    quantise.mode = Quantise::fp8_pow2;
    return quantise_scale(quantise, {.largest = largest});
  }

  __device__ static float largest_finite(const float (&x)[2][kLaneColumns]) {
    float largest = 0.0f;
#pragma unroll
    for (const auto& half : x) {
#pragma unroll
      for (const float value : half) largest = fmaxf(largest, fabsf(value));
    }
    largest = largest_of_eight(largest);
    if (__all_sync(kAllLanes, is_finite(largest))) return largest;
    largest = 0.0f;
#pragma unroll
    for (const auto& half : x) {
#pragma unroll
      for (const float value : half) largest = larger_finite(largest, value);
    }
    return largest_of_eight(largest);
  }
  __device__ static float largest_of_eight(float largest) {
#pragma unroll
    for (int apart = 4; apart > 0; apart /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, apart));
    return largest;
  }

  __device__ bool has_byte_scale() const { return a_.call.shape.quantise == Quantise::fp8_ue8m0; }

  /// Four blocks' scales, those of no block 0; or their bytes in one word.
  __device__ uint4 scale_words(const QuantiseScale& scale) const {
    const uint32_t own = has_byte_scale() ? scale.byte : __float_as_uint(scale.scale);
    uint32_t words[4];
#pragma unroll
    for (int block = 0; block < 4; ++block) words[block] = __shfl_sync(kAllLanes, own, block * 8);
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
  /// Of a part: how many blocks have columns, and what then travels.
  __device__ int blocks_of(int part) const {
    const int left = hidden_ - part * kDispatchPart;
    return left >= kDispatchPart ? 4 : (left + kQuantiseBlock - 1) / kQuantiseBlock;
  }
  __device__ uint4 trimmed(uint4 words, int part) const {
    const int blocks = blocks_of(part);
    if (blocks < 4) words.w = 0;
    if (blocks < 3) words.z = 0;
    if (blocks < 2) words.y = 0;
    if (!has_byte_scale()) return words;
    return make_uint4(words.x | words.y << 8 | words.z << 16 | words.w << 24, 0, 0, 0);
  }

  // --- rows out ---

  __device__ void send_part(int token, int part, const CastPart& cast, const LaneRoute& route) const {
    const bool goes = route.is_first_of_owner && board_.live[route.owner] != 0 &&
                      (route.owner != topo_.rank || own_by_words());
    const int payload = region_.payload_words(part);
#pragma unroll 1
    for (unsigned left = __ballot_sync(kAllLanes, goes); left != 0; left &= left - 1) {
      const int column = __ffs(static_cast<int>(left)) - 1;
      const int peer = __shfl_sync(kAllLanes, route.owner, column);
      const int slot = __shfl_sync(kAllLanes, route.slot, column);
      std::byte* words = words_at(peer, topo_.rank);
      std::byte* row = words + region_.rows + (int64_t{slot} * region_.row_words + part * region_.part_words) * kWordBytes;
      if (lane() < payload) send_word(row + lane() * kWordBytes, cast.columns);
      if (lane() == 0) send_word(row + payload * kWordBytes, cast.scales);
      if (part != 0 || lane() >= topk_) continue;
      const WordRoute at_peer{.token = token,
                              .expert = route.owner == peer ? route.id - topo_.first_expert(peer) : -1,
                              .ordinal = route.owner == peer ? route.ordinal : -1};
      store_word(words + region_.routes + (int64_t{slot} * topk_ + lane()) * kWordBytes,
                 {tagged(at_peer.packed(), board_.seq), tagged(__float_as_uint(route.weight), board_.seq)});
    }
  }

  /// By block b for peers b, b + blocks, ...
  __device__ void put_notes() const {
#pragma unroll 1
    for (int peer = blockIdx.x; peer < topo_.world; peer += gridDim.x) {
      if (board_.live[peer] == 0) continue;
      const bool by_words = peer != topo_.rank || own_by_words();
      const int32_t count = sets_.all(peer);
      const int local = topo_.num_local(peer), first = topo_.world + topo_.first_expert(peer);
      std::byte* table = words_at(peer, topo_.rank) + region_.table;
#pragma unroll 1
      for (int pair = threadIdx.x; by_words && pair < (local + 1) / 2; pair += kDecodeThreads) {
        const auto low = static_cast<uint32_t>(sets_.all(first + 2 * pair));
        const auto high = 2 * pair + 1 < local ? static_cast<uint32_t>(sets_.all(first + 2 * pair + 1)) : 0u;
        store_tagged(table + pair * int64_t{sizeof(uint64_t)}, tagged(low | high << 16, board_.seq));
      }
      if (by_words && threadIdx.x == kDecodeThreads - 1) put_note_to(peer, count, a_.plan.tokens);
    }
  }

  // --- where rows lie here ---

  __device__ int32_t& rows_from(int source, int expert) const { return before_[source * local_ + expert]; }

  /// All counts, each by one thread: the words of all sources come together.
  __device__ void hear() const {
    const int pairs = (local_ + 1) / 2;
    const int each = pairs + 1;
#pragma unroll 1
    for (int item = threadIdx.x; item < topo_.world * each; item += kDecodeThreads) {
      const int source = item / each, pair = item % each - 1;
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
    if (!read_note(source, count, tokens)) return;
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
      int32_t sum = own;
#pragma unroll
      for (int apart = 1; apart < 32; apart *= 2) {
        const int32_t lower = __shfl_up_sync(kAllLanes, sum, apart);
        if (lane() >= apart) sum += lower;
      }
      if (expert < local_) start_[expert] = start + sum - own;
      start += __shfl_sync(kAllLanes, sum, 31);
    }
    if (lane() == 0) start_[local_] = start;
  }

  // --- rows in ---

  /// All lanes.
  __device__ void place(const Moved& moved) const {
    const int i = board_.offset[moved.source] + moved.slot;  // among all received rows
    if (i >= a_.route.capacity) return;
    const LaneHit& hit = moved.hit;
    const CastPart& cast = moved.cast;
    const int part = moved.part;
    int32_t row = -1;
    if (hit.expert >= 0 && hit.ordinal >= 0) {
      const int64_t at = int64_t{start_[hit.expert]} + rows_from(moved.source, hit.expert) + hit.ordinal;
      row = at < a_.out.rows ? static_cast<int32_t>(at) : kDropped;
    }
    const int payload = region_.payload_words(part);
    const int words = has_byte_scale() ? 1 : blocks_of(part);
    const uint32_t scale = lane() == 0 ? cast.scales.x : lane() == 1 ? cast.scales.y : lane() == 2 ? cast.scales.z
                                                                                                  : cast.scales.w;
#pragma unroll 1
    for (unsigned left = __ballot_sync(kAllLanes, row >= 0); left != 0; left &= left - 1) {
      const int column = __ffs(static_cast<int>(left)) - 1;
      const int at = __shfl_sync(kAllLanes, row, column);
      const int expert = __shfl_sync(kAllLanes, hit.expert, column);
      std::byte* x = a_.out.x + int64_t{at} * hidden_ + part * kDispatchPart + lane() * kWordBytes;
      if (lane() < payload) store_columns_at(x, cast.columns);
      if (lane() >= words) continue;
      scale_row(at, expert)[(part * (has_byte_scale() ? 1 : 4) + lane()) * a_.out.scales.col_stride] = scale;
    }
    if (part == 0) place_route(moved.source, i, moved.token, row, hit);
  }
  /// ScaleView::row() without divisions of 64 bits; the groups of a slab are its experts.
  __device__ uint32_t* scale_row(int row, int expert) const {
    const ScaleView& view = a_.out.scales;
    int in_group = row;
    uint32_t* first = view.words;
    if (view.group <= INT32_MAX) {
      const auto rows = static_cast<int>(view.group);
      const bool is_expert = a_.call.shape.layout == Layout::slab && rows == a_.call.shape.max_tokens * topo_.world;
      const int group = is_expert ? expert : row / rows;
      in_group -= group * rows;
      first += group * view.group_stride;
    }
    if (view.tile_stride == 0) return first + in_group * view.row_stride;
    const int in_tile = in_group % static_cast<int>(kTileRows);
    return first + in_group / static_cast<int>(kTileRows) * view.tile_stride + in_tile % 32 * 4 + in_tile / 32;
  }

  __device__ static void store_columns_at(std::byte* to, const uint4& columns) {
    if (reinterpret_cast<uintptr_t>(to) % sizeof(uint4) == 0) {
      *reinterpret_cast<uint4*>(to) = columns;
      return;
    }
    uint4 left = columns;
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      to[i] = static_cast<std::byte>(left.x);
      left = make_uint4(left.x >> 8 | left.y << 24, left.y >> 8 | left.z << 24, left.z >> 8 | left.w << 24, left.w >> 8);
    }
  }

  /// What the handle and the output say beside the payload; an expert chosen twice has the sum of the weights.
  __device__ void place_route(int source, int i, int token, int32_t row, const LaneHit& hit) const {
    const unsigned alike = __match_any_sync(kAllLanes, hit.expert >= 0 ? hit.expert : -1 - lane());
    float weight = hit.weight;
    if (__any_sync(kAllLanes, __popc(alike) > 1)) {
#pragma unroll 1
      for (int later = 1; later < topk_; ++later) {
        const float other = __shfl_sync(kAllLanes, hit.weight, later);
        if (later > lane() && (alike >> later & 1) != 0) weight += other;
      }
    }
    const int64_t at = int64_t{i} * topk_ + lane();
    if (lane() < topk_) {
      a_.route.recv_ids[at] = hit.expert;
      a_.route.recv_weights[at] = hit.expert < 0 ? 0.0f : hit.weight;
      a_.route.row_of[at] = row;
    }
    if (lane() == 0) a_.route.recv_token[i] = token;
    if (row < 0) return;
    a_.out.row_weights[row] = weight;
    if (a_.out.row_source != nullptr) a_.out.row_source[row] = source;
    if (a_.out.row_token != nullptr) a_.out.row_token[row] = token;
  }

  /// False: the call has ended in a fault.
  __device__ bool take_part(Moved& moved) const {
    const int source = moved.source, slot = moved.slot, part = moved.part;
    std::byte* words = words_from(source);
    std::byte* row = words + region_.rows + (int64_t{slot} * region_.row_words + part * region_.part_words) * kWordBytes;
    const int payload = region_.payload_words(part);
    std::byte* own = row + lane() * kWordBytes;
    std::byte* scales = row + payload * kWordBytes;
    const std::byte* routes = words + region_.routes + (int64_t{slot} * topk_ + lane()) * kWordBytes;
    const Word full{~uint64_t{0}, ~uint64_t{0}};
    Word columns = full, scale = full, route{tagged(0, board_.seq), tagged(0, board_.seq)};
    const auto poll = [&] {
      if (lane() < payload) columns = load_word(own);
      scale = load_word(scales);
      if (lane() < topk_) route = load_word(routes);
      return columns.is_here() && scale.is_here() && has_tag(route.low, wait_.seq) && has_tag(route.high, wait_.seq);
    };
    const Wanted wanted{.words = {lane() < payload ? own : nullptr, scales},
                        .tagged = {lane() < topk_ ? routes : nullptr, lane() < topk_ ? routes + 8 : nullptr},
                        .seq = wait_.seq};
    const Heard heard = await_words(port_, call_, wait_, source, wanted, poll);
    if (heard != Heard::nothing) {
      note_loss(source, heard);
      return false;
    }
    if (lane() < payload) store_word(own, {});
    if (lane() == 0) store_word(scales, {});
    const WordRoute at_me = WordRoute::of(static_cast<uint32_t>(route.low));
    if (lane() < topk_) {
      const float weight = __uint_as_float(static_cast<uint32_t>(route.high));
      moved.hit = {.expert = at_me.expert, .ordinal = at_me.ordinal, .weight = weight};
    }
    moved.token = __shfl_sync(kAllLanes, at_me.token, 0);
    moved.cast = {.columns = columns.data(), .scales = scale.data()};
    return true;
  }

  // --- the whole ---

  /// First the items of this rank's tokens, then those that others send. All of them end in place(), which is long.
  __device__ void move(Ahead ahead) {
    if (decode_.sends()) put_notes();
    const int sends = decode_.sends() ? items() : 0;
    bool is_first = true;
#pragma unroll 1
    for (int item = worker();; item += workers()) {
      Moved moved;
      bool places = false;
      if (item < sends) {
        if (!is_first) {
          uint4 columns[2];
          load_columns_of(item, columns);
          load_column(divide(item, decode_.parts), ahead.id, ahead.weight);
          ahead.cast = cast(columns);
        }
        places = send_item(item, ahead, moved);
      }
      if (is_first) {
        is_first = false;
        if (decode_.receives() && !hear_all()) return;
      }
      if (item >= sends) {
        if (!decode_.receives()) return;
        if (item - sends >= board_.most * board_.others * region_.parts) break;
        if (is_broken() || !receive_item(item - sends, moved, places)) return;
      }
      if (places) place(moved);
    }
    clear_gaps();
  }

  /// All threads. False: the call has ended in a fault.
  __device__ bool hear_all() {
    hear();
    const bool ok = !any_worker(is_broken());
    if (ok) lay_out();
    if (is_last_block()) let_clerk_go();
    if (ok && is_last_block()) write_tables();
    return ok;
  }

  /// True if the token has hits here, which are then to be placed.
  __device__ bool send_item(int item, const Ahead& ahead, Moved& moved) const {
    moved.source = topo_.rank;
    moved.token = divide(item, decode_.parts);
    moved.part = item - moved.token * region_.parts;
    moved.cast = ahead.cast;
    moved.cast.scales = trimmed(moved.cast.scales, moved.part);
    const LaneRoute route = route_of(moved.token, ahead.id, ahead.weight);
    send_part(moved.token, moved.part, moved.cast, route);
    if (own_by_words() || board_.live[topo_.rank] == 0) return false;
    const bool is_mine = route.owner == topo_.rank;
    const unsigned mine = __ballot_sync(kAllLanes, is_mine);
    if (mine == 0) return false;
    moved.slot = __shfl_sync(kAllLanes, route.slot, __ffs(static_cast<int>(mine)) - 1);
    if (is_mine) moved.hit = {.expert = route.id - first_, .ordinal = route.ordinal, .weight = route.weight};
    return true;
  }

  /// The items of all sources go round them. False: the call has ended in a fault.
  __device__ bool receive_item(int item, Moved& moved, bool& places) const {
    const int row = divide(item, decode_.parts);
    moved.part = item - row * region_.parts;
    moved.slot = board_.others == 1 ? row : row / board_.others;
    moved.source = nth_source(row - moved.slot * board_.others);
    places = moved.slot < board_.count[moved.source];
    return !places || take_part(moved);
  }
  __device__ bool sends_here(int source) const {
    return speaks(source) && (source != topo_.rank || own_by_words());
  }
  __device__ int nth_source(int n) const {
    int source = 0;
#pragma unroll 1
    for (;; ++source) {
      if (sends_here(source) && n-- == 0) return source;
    }
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
    for (int i = threadIdx.x; i < local_; i += kDecodeThreads) out.counts[i] = total_[i];
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
    if (start_[local_] <= out.rows) {
      if (threadIdx.x == 0 && out.num_dropped != nullptr) *out.num_dropped = 0;
      return;
    }
    meet_workers();
    if (threadIdx.x != 0) return;
    leave_out_apart(a_);
  }

  __device__ void clear_gaps() const {
    const int64_t rows = a_.out.rows;
#pragma unroll 1
    for (int expert = blockIdx.x; expert < local_; expert += gridDim.x) {
      const bool is_last = expert + 1 == local_;
      const int64_t end = is_last ? a_.call.shape.layout == Layout::slab ? rows : 0 : start_[expert + 1];
      clear_rows(int64_t{start_[expert]} + total_[expert], end < rows ? end : rows, threadIdx.x, kDecodeThreads);
    }
    if (a_.call.shape.layout == Layout::slab) return;
    const int64_t first = local_ > 0 ? int64_t{start_[local_ - 1]} + total_[local_ - 1] : 0;
    clear_rows(first, rows, blockIdx.x * kDecodeThreads + threadIdx.x, gridDim.x * kDecodeThreads);
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

  __device__ void finish_call() {
    end([&](bool faulted) { close_decode(port_, a_, site_, decode_.receives(), faulted); });
  }

  const DispatchArgs& a_;
  const int first_;
  const int local_;
  const int topk_;
  const int hidden_;
  const TokenBits sets_;
  int32_t* start_;   // [local + 1] first row of each group
  int32_t* total_;   // [local]
  int32_t* before_;  // [ranks][local]
  uint8_t* owners_;  // [experts]
};

}  // namespace heddle
