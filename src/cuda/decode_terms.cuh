// What is summed in a low-latency combine: the rows of a token's hits here, and their weights, which may come late.
#pragma once

#include <cstdint>

#include "cuda/decode_call.cuh"
#include "cuda/decode_sums.cuh"

namespace heddle {

class DecodeTerms : protected DecodeCall {
 protected:
  __device__ DecodeTerms(const DirectPort& port, const CombineArgs& args, const Site& site, const DecodeSite& decode,
                         DecodeBoard& board, std::byte* memory)
      : DecodeCall(port, args.call, site, decode, board), a_(args), topk_(args.call.shape.topk),
        weights_(args.call.shape.weights), sets_(memory, topo_.world, args.plan.tokens) {}

  __device__ bool is_late() const { return weights_ == Weights::late; }
  /// Results can be summed in this launch: the weights are known, or come in it.
  __device__ bool pushes_here() const { return is_late() ? decode_.receives() : decode_.sends(); }
  /// Their own results go by words where sums are made in another launch than the results.
  __device__ bool own_by_words() const { return !decode_.receives() || !pushes_here(); }
  __device__ bool own_is_here() const { return decode_.receives() && pushes_here(); }

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
    const unsigned alike = __match_any_sync(kAllLanes, id);
    if (!__any_sync(kAllLanes, id >= 0 && __popc(alike) > 1)) return term;
    const float own = term.weight;
#pragma unroll 1
    for (int later = 1; later < topk_; ++later) {
      const float other = __shfl_sync(kAllLanes, own, later);
      if (later > lane() && (alike >> later & 1) != 0) term.weight += other;
    }
    return term;
  }

  /// The source's weights for a slot, one a lane; 0 of one that refused. False: they do not come.
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
    // Who refused sends no weights, and yet waits for every row that it was told of.
    late = heard == Heard::refused ? 0.0f : __uint_as_float(static_cast<uint32_t>(word));
    return heard == Heard::nothing || heard == Heard::refused;
  }
  __device__ float own_weight(int slot) const {
    const int token = a_.route.recv_token[board_.offset[topo_.rank] + slot];
    return lane() < topk_ ? a_.out.weights_in[int64_t{token} * topk_ + lane()] : 0.0f;
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

  const CombineArgs& a_;
  const int topk_;
  const Weights weights_;
  const TokenBits sets_;
};

}  // namespace heddle
