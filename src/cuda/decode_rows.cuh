// Rows that have come, at their receiver: the payload to the rows of a token's hits, and what the handle and the output say of
// them.
#pragma once

#include <cstdint>

#include "cuda/decode_cast.cuh"
#include "cuda/decode_places.cuh"

namespace heddle {

/// What one lane knows of one column of a token's route, at its receiver.
struct LaneHit {
  int32_t expert = -1;   // local, or -1
  int32_t ordinal = -1;  // or -1: not the first column of the expert
  float weight = 0.0f;
};

/// A part on its way to the rows of its hits here: its `slot`-th row of the source.
struct Moved {
  int source = 0;
  int slot = 0;
  int token = 0;
  int part = 0;
  CastPart cast{};
  LaneHit hit;
};

/// By all lanes: a piece of each lane's expert; null: it has none.
__device__ __noinline__ inline void add_ready_apart(uint64_t* word, uint64_t pieces) {
  __syncwarp();
  if (word != nullptr) add_ready(word, pieces);
}

class DecodeRows : protected DecodePlaces {
 protected:
  __device__ DecodeRows(const DirectPort& port, const DispatchArgs& args, const Site& site, const DecodeSite& decode,
                        DecodeBoard& board, std::byte* memory)
      : DecodePlaces(port, args, site, decode, board, memory), caster_(args) {}

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
    // Each lane works out where its own hit's row lies, then all lanes store there.
    const int payload = region_.payload_words(part), words = caster_.num_words(part);
    std::byte* own_x = a_.out.x + int64_t{row} * hidden_ + part * kDispatchPart;
    uint32_t* own_scales = row >= 0 && words > 0 ? scale_row(row, hit.expert) + caster_.first_word(part) * a_.out.scales.col_stride : nullptr;
    const int64_t word_at = lane() * a_.out.scales.col_stride;
    const bool is_aligned = reinterpret_cast<uintptr_t>(a_.out.x) % sizeof(uint4) == 0;
    const uint4 columns = caster_.is_cast() ? cast.columns : with_ones(cast);
    const uint32_t scale = lane() == 0 ? cast.scales.x : lane() == 1 ? cast.scales.y : lane() == 2 ? cast.scales.z
                                                                                                  : cast.scales.w;
#pragma unroll 1
    for (unsigned left = __ballot_sync(kAllLanes, row >= 0); left != 0; left &= left - 1) {
      const int column = __ffs(static_cast<int>(left)) - 1;
      std::byte* x = of_lane(own_x, column) + lane() * kWordBytes;
      uint32_t* scales = of_lane(own_scales, column);
      if (lane() < payload && is_aligned) *reinterpret_cast<uint4*>(x) = columns;
      else if (lane() < payload) store_odd(x, columns);
      if (lane() < words) scales[word_at] = scale;
    }
    if (part == 0) place_route(moved.source, i, moved.token, row, hit);
    if (a_.out.ready.is_set()) add_ready_apart(row < 0 ? nullptr : a_.out.ready.words + hit.expert, row < 0 ? 0 : pieces_of(hit.expert));
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

  template <class T>
  __device__ static T* of_lane(T* own, int lane) {
    return reinterpret_cast<T*>(__shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(own), lane));
  }

  /// What the handle and the output say beside the payload; an expert chosen twice has the sum of the weights.
  __device__ void place_route(int source, int i, int token, int32_t row, const LaneHit& hit) const {
    const unsigned alike = __match_any_sync(kAllLanes, hit.expert);
    float weight = hit.weight;
    if (__any_sync(kAllLanes, hit.expert >= 0 && __popc(alike) > 1)) {
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

  const PartCaster caster_;
};

}  // namespace heddle
