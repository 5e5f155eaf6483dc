// The route of every rank's batch: what a rank can know of its own tokens without hearing from anybody.
#pragma once

#include "spec/world.hpp"

namespace heddle::spec {

struct Plan {
  std::vector<std::int32_t> ids;               // [tokens][topk]
  std::vector<std::uint8_t> in_rank;           // [tokens][ranks]
  std::vector<std::int32_t> send_offset;       // [ranks + 1]
  std::vector<std::int32_t> send_tokens;       // [send_offset[ranks]]; the k-th of a destination is its slot k (I1)
  std::vector<std::int32_t> pairs_per_expert;  // [experts], (token, column) pairs: duplicates count
  std::vector<std::int32_t> rows_per_expert;   // [experts], distinct (token, expert)
  std::vector<std::int32_t> ordinal;           // [tokens][topk], the token's place among those of the expert; else -1
};

/// One plan per rank. Masks play no part: a plan outlives them.
/// Throws Error{usage} for an id outside [-1, experts) and for tensors whose sizes disagree.
std::vector<Plan> plan(const World&);

}  // namespace heddle::spec
