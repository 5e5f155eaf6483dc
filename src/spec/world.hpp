// All ranks of one call at once: what each of them holds, and who ignores whom. The spec is written for being
// obviously right; it shares nothing with device/ and protocol/, which are tested against it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace heddle::spec {

using Bytes = std::vector<std::byte>;

/// What one rank brings to a call. Every tensor is row-major and dense.
struct Batch {
  int tokens = 0;
  Bytes rows;                          // [tokens][row_bytes]
  std::vector<std::uint32_t> scales;   // [tokens][scale_words], the caller's; empty if scale_words is 0
  std::vector<std::int32_t> ids;       // [tokens][topk], global expert ids, -1 = none; empty if topk is 0
  std::vector<std::uint8_t> rank_map;  // [tokens][ranks], the routing if topk is 0
  std::vector<float> weights;          // [tokens][topk], or empty: all 0
};

struct World {
  int ranks = 1;
  int experts = 1;
  int topk = 0;  // 0: routed by rank_map, token-major only
  int hidden = 0;
  int row_bytes = 0;
  int scale_words = 0;
  std::vector<Batch> batches;  // [ranks]
};

/// [rank][peer]: rank treats peer as masked. Empty: nobody is masked.
using Mask = std::vector<std::vector<bool>>;

/// Throws Error{usage} naming the tensor, its rank and both sizes.
void check_size(const char* name, int rank, std::size_t seen, std::int64_t wanted);

/// Throws Error{usage} for tensors whose sizes disagree and for ids outside [-1, experts).
void check(const World&);

/// A mask closes its pair in both directions, whichever end holds it (I10).
inline bool closed(const Mask& mask, int a, int b) { return !mask.empty() && (mask[a][b] || mask[b][a]); }

/// First expert of `rank`; that of `ranks` is the number of experts, so this also ends the last range.
inline int first_expert(const World& world, int rank) {
  return static_cast<int>(std::int64_t{rank} * world.experts / world.ranks);
}

inline int local_experts(const World& world, int rank) {
  return first_expert(world, rank + 1) - first_expert(world, rank);
}

inline bool owns(const World& world, int rank, int expert) {
  return expert >= first_expert(world, rank) && expert < first_expert(world, rank + 1);
}

std::int32_t id_at(const World&, const Batch&, int token, int k);

/// True if column k of a token is the first that names its expert; false for -1 and for repeats.
bool is_first_column(const World&, const Batch&, int token, int k);

/// The weights of all columns of `token` that name the expert of its first column k, added in column order.
/// 0 if `weights` is empty.
float summed_weight(const World&, const std::vector<float>& weights, const Batch&, int token, int k);

/// True if `token` has business at `rank`: one of its experts lives there, or the map says so.
bool reaches(const World&, const Batch&, int token, int rank);

}  // namespace heddle::spec
