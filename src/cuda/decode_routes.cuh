// Where a low-latency dispatch sends this rank's tokens: bitmasks that every block makes of all ids, and what follows from them
// for one token.
#pragma once

#include <cstdint>

#include "cuda/decode_call.cuh"

namespace heddle {

/// What one lane knows of one column of a token of this rank.
struct LaneRoute {
  int32_t id = -1;
  int32_t owner = -1;
  int32_t ordinal = -1;
  int32_t slot = 0;             // of the token, at the owner
  bool is_first_of_owner = false;
  float weight = 0.0f;
};

class DecodeRoutes : protected DecodeCall {
 protected:
  __device__ DecodeRoutes(const DirectPort& port, const DispatchArgs& args, const Site& site, const DecodeSite& decode,
                          DecodeBoard& board, std::byte* memory)
      : DecodeCall(port, args.call, site, decode, board), a_(args), first_(decode.first_expert),
        local_(decode.num_local), topk_(args.call.shape.topk), hidden_(args.call.shape.payload_bytes),
        sets_(memory, topo_.world + topo_.experts, args.plan.tokens),
        owners_(reinterpret_cast<uint8_t*>(memory) + decode.owners_at) {}

  __device__ bool own_by_words() const { return !decode_.receives() || !decode_.sends(); }

  /// What Topology says of all experts and ranks: its divisions on the way would be most of the routing.
  __device__ void list_owners() const {
#pragma unroll 1
    for (int expert = threadIdx.x; expert < topo_.experts; expert += kDecodeThreads) {
      owners_[expert] = static_cast<uint8_t>(topo_.owner_of(expert));
    }
#pragma unroll 1
    for (int rank = threadIdx.x; rank <= topo_.world; rank += kDecodeThreads) {
      board_.first_expert[rank] = topo_.first_expert(rank);
    }
  }

  /// Column k of a token, as the caller gave it: the low word, and the high one of a wide id.
  __device__ int2 load_words(int token, int k) const {
    const int32_t* at = decode_.ids.words + token * decode_.ids.row_stride + k * decode_.ids.column_stride;
    const int32_t low = __ldg(at);
    return make_int2(low, decode_.ids.wide ? __ldg(at + 1) : low >> 31);
  }
  __device__ bool is_legal(const int2& words) const {
    return words.y == words.x >> 31 && words.x >= -1 && words.x < topo_.experts;
  }
  __device__ bool is_legal(int token, int k) const { return is_legal(load_words(token, k)); }
  /// -1: none, or out of range.
  __device__ int32_t load_id(int token, int k) const {
    const int2 words = load_words(token, k);
    return is_legal(words) ? words.x : -1;
  }

  /// By all workers. A thread has one column of a token at a time.
  __device__ void mark_sets() const {
    constexpr int kAhead = 4;  // that are asked for together
    const int items = a_.plan.tokens * topk_;
#pragma unroll 1
    // The first warps have the first rows as well.
    for (int first = kDecodeThreads - 1 - static_cast<int>(threadIdx.x); first < items; first += kAhead * kDecodeThreads) {
      int tokens[kAhead];
      int32_t ids[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int item = first + i * kDecodeThreads;
        tokens[i] = divide(item, decode_.topk);
        ids[i] = item < items ? load_id(tokens[i], item - tokens[i] * topk_) : -1;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (ids[i] < 0) continue;
        sets_.add(owners_[ids[i]], tokens[i]);
        sets_.add(topo_.world + ids[i], tokens[i]);
      }
    }
  }

  /// Column lane() of a token.
  __device__ void load_column(int token, int32_t& id, float& weight) const {
    id = -1;
    weight = 0.0f;
    if (lane() >= topk_) return;
    id = load_id(token, lane());
    if (a_.batch.weights != nullptr) weight = __ldg(a_.batch.weights + token * topk_ + lane());
  }

  /// By all lanes of a warp.
  __device__ LaneRoute route_of(int token, int32_t id, float weight) const {
    LaneRoute route;
    route.id = id;
    route.weight = weight;
    if (route.id >= 0) route.owner = owners_[route.id];
    const bool first_of_expert = is_lowest(route.id);
    route.is_first_of_owner = is_lowest(route.owner) && route.id >= 0;
    if (route.id < 0) return route;
    if (first_of_expert) route.ordinal = sets_.earlier(topo_.world + route.id, token);
    route.slot = sets_.earlier(route.owner, token);
    return route;
  }
  /// Whether no lower lane has the same value. The fewer different ones there are, the sooner it is known.
  __device__ static bool is_lowest(int value) {
    return __ffs(static_cast<int>(__match_any_sync(kAllLanes, value))) - 1 == lane();
  }

  const DispatchArgs& a_;
  const int first_;
  const int local_;
  const int topk_;
  const int hidden_;
  const TokenBits sets_;
  uint8_t* const owners_;  // [experts]
};

}  // namespace heddle
