// What a low-latency dispatch leaves of its plan, where it makes it: all that the planner of plan_blocks.hpp would. By the
// clerks, who have time, once all ids are in the sets.
#pragma once

#include <cstdint>

#include "cuda/decode_routes.cuh"

namespace heddle {

/// By the closer's block, where a token names an expert twice: the sets know of no such pairs.
__device__ __noinline__ inline void recount_pairs(const DispatchArgs& args) {
  const int experts = args.call.ctx.topo.experts;
  for (int expert = threadIdx.x; expert < experts; expert += blockDim.x) args.plan.pairs[expert] = 0;
  __syncthreads();
  for (int at = threadIdx.x; at < args.plan.tokens * args.plan.topk; at += blockDim.x) {
    if (args.plan.ids[at] >= 0) atomicAdd(&args.plan.pairs[args.plan.ids[at]], 1);
  }
}

class DecodePlan : protected DecodeRoutes {
 protected:
  using DecodeRoutes::DecodeRoutes;

  /// By the clerks of all blocks: block b has tokens b, b + blocks, ... and 32 experts at a time.
  __device__ void write_plan() const {
    if (!a_.makes_plan || !decode_.sends()) return;
    offset_ranks();
#pragma unroll 1
    for (int token = blockIdx.x; token < a_.plan.tokens; token += gridDim.x) write_token(token);
#pragma unroll 1
    for (int expert = blockIdx.x * 32 + lane(); expert < topo_.experts; expert += gridDim.x * 32) {
      a_.plan.rows[expert] = a_.plan.pairs[expert] = sets_.count_all(topo_.world + expert);
    }
    if (blockIdx.x == 0) write_totals();
  }

 private:
  /// Slots of all ranks, one after the other.
  __device__ void offset_ranks() const {
    int32_t end = 0;
#pragma unroll 1
    for (int first = 0; first < topo_.world; first += 32) {
      const int rank = first + lane();
      const int32_t own = rank < topo_.world ? sets_.count_all(rank) : 0;
      const int32_t sum = sum_of_lanes_to(own);
      if (rank < topo_.world) board_.sent[rank] = end + sum - own;
      end += __shfl_sync(kAllLanes, sum, 31);
    }
    if (lane() == 0) board_.sent[topo_.world] = end;
    __syncwarp();
  }

  __device__ void write_token(int token) const {
    const int32_t id = lane() < topk_ ? load_id(token, lane()) : -1;
    const int32_t owner = id >= 0 ? owners_[id] : -1;
    const bool is_first_of_expert = is_lowest(id) && id >= 0;
    const bool is_first_of_owner = is_lowest(owner) && id >= 0;
    if (__any_sync(kAllLanes, id >= 0 && !is_first_of_expert)) note_repeats();
    if (is_first_of_owner) a_.plan.send_tokens[board_.sent[owner] + sets_.count_before(owner, token)] = token;
    if (lane() < topk_) {
      const int at = token * topk_ + lane();
      a_.plan.ordinals[at] = is_first_of_expert ? sets_.count_before(topo_.world + id, token) : -1;
      if (decode_.ids.words != a_.plan.ids) a_.plan.ids[at] = id;
      if (decode_.ids.bad != nullptr && !is_legal(token, lane())) *decode_.ids.bad = static_cast<uint64_t>(at) + 1;
    }
#pragma unroll 1
    for (int rank = lane(); rank < topo_.world; rank += 32) {
      a_.plan.in_rank[token * int64_t{topo_.world} + rank] = sets_.has(rank, token);
    }
  }

  /// Rare, so that nobody counts pairs on the way: who does it waits for all blocks.
  __device__ void note_repeats() const {
    board_.unusual = 1;
    site_.decode->repeats = 1;
  }

  __device__ void write_totals() const {
#pragma unroll 1
    for (int rank = lane(); rank <= topo_.world; rank += 32) {
      a_.plan.send_offset[rank] = board_.sent[rank];
      if (rank < topo_.world) a_.plan.per_rank[rank] = board_.sent[rank + 1] - board_.sent[rank];
    }
  }
};

}  // namespace heddle
