// Where each rank's window is mapped here: what a kernel or a protocol step gets of SymmetricMemory, by value.
#pragma once

#include "base/macros.hpp"
#include "layout/limits.hpp"

#include <cstddef>

namespace heddle {

/// Valid while the SymmetricMemory it came from lives.
struct PeerView {
  std::byte* windows[kMaxRanks];  // by rank; nullptr = far, or not a member
  int count;                      // ranks above it have no window
  int rank;                       // our own

  HEDDLE_HD std::byte* local() const { return windows[rank]; }
  HEDDLE_HD std::byte* peer(int other) const { return windows[other]; }
};

}  // namespace heddle
