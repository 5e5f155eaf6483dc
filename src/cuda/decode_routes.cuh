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
      : DecodeCall(port, args.call, site, decode, board), a_(args), first_(topo_.first_expert(topo_.rank)),
        local_(topo_.num_local(topo_.rank)), topk_(args.call.shape.topk), hidden_(args.call.shape.payload_bytes),
        sets_(memory, topo_.world + topo_.experts, args.plan.tokens),
        owners_(reinterpret_cast<uint8_t*>(memory) + decode_sets_bytes(args)) {}

  __device__ bool own_by_words() const { return !decode_.receives() || !decode_.sends(); }

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

  const DispatchArgs& a_;
  const int first_;
  const int local_;
  const int topk_;
  const int hidden_;
  const TokenBits sets_;
  uint8_t* const owners_;  // [experts]
};

}  // namespace heddle
