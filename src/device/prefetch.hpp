// Asks for memory that will be read soon, so that a chain of reads waits for it once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/macros.hpp"

namespace heddle {

/// By all lanes of the coop.
template <class Coop>
HEDDLE_HD void prefetch(const Coop& coop, const void* from, size_t bytes) {
#if HEDDLE_ON_DEVICE
  constexpr int kLine = 128;
  const auto first = reinterpret_cast<uintptr_t>(from) / kLine * kLine;
  const auto lane = static_cast<size_t>(coop.index() * coop.lanes() + coop.lane());
  const size_t lines = (reinterpret_cast<uintptr_t>(from) + bytes - first + kLine - 1) / kLine;
  for (size_t line = lane; line < lines; line += static_cast<size_t>(coop.size() * coop.lanes())) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(first + line * kLine));
  }
#else
  (void)coop, (void)from, (void)bytes;
#endif
}

}  // namespace heddle
