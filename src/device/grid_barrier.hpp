// Where the blocks of a launch meet; see grid.cuh.
#pragma once

#include <cstdint>

namespace heddle {

/// In device memory, zero at first; for one launch at a time. Once `broken` it stays so until the host clears both words.
struct GridBarrier {
  uint32_t arrived = 0;
  uint32_t broken = 0;
};

}  // namespace heddle
