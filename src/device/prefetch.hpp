// Asks for memory that will be read soon, so that a chain of reads waits for it once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/macros.hpp"

namespace heddle {

/// By one lane of `lanes`: its share of the lines.
HEDDLE_HD inline void prefetch_share(int lane, int lanes, const void* from, size_t bytes) {
#if HEDDLE_ON_DEVICE
  constexpr int kLine = 128;
  const auto first = reinterpret_cast<uintptr_t>(from) / kLine * kLine;
  const size_t lines = (reinterpret_cast<uintptr_t>(from) + bytes - first + kLine - 1) / kLine;
  for (auto line = static_cast<size_t>(lane); line < lines; line += static_cast<size_t>(lanes)) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(first + line * kLine));
  }
#else
  (void)lane, (void)lanes, (void)from, (void)bytes;
#endif
}

/// By all lanes of the coop.
template <class Coop>
HEDDLE_HD void prefetch(const Coop& coop, const void* from, size_t bytes) {
  prefetch_share(coop.index() * coop.lanes() + coop.lane(), coop.size() * coop.lanes(), from, bytes);
}

}  // namespace heddle
