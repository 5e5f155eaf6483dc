// Who owns which expert. A value, the same on all ranks but for `rank`.
#pragma once

#include <cstdint>

#include <heddle/macros.hpp>

namespace heddle {

/// The most experts: with any number of ranks the arithmetic below stays within 32 bits, as a GPU divides 64 slowly.
inline constexpr int kMaxExperts = 1 << 24;

struct Topology {
  int rank = 0;
  int world = 1;
  int experts = 1;

  /// Rank r owns [first_expert(r), first_expert(r + 1)); an uneven split differs by one at most.
  HEDDLE_HD constexpr int first_expert(int r) const {
    return static_cast<int>(static_cast<uint32_t>(r) * static_cast<uint32_t>(experts) / static_cast<uint32_t>(world));
  }
  HEDDLE_HD constexpr int num_local(int r) const { return first_expert(r + 1) - first_expert(r); }

  /// The largest r with first_expert(r) <= expert.
  HEDDLE_HD constexpr int owner_of(int expert) const {
    return static_cast<int>(((static_cast<uint32_t>(expert) + 1) * static_cast<uint32_t>(world) - 1) /
                            static_cast<uint32_t>(experts));
  }
  HEDDLE_HD constexpr bool is_expert(int64_t id) const { return id >= 0 && id < experts; }
};

}  // namespace heddle
