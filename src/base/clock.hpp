// The one clock that deadlines and spans are measured with: steady, comparable between threads of one host.
#pragma once

#include <chrono>
#include <cstdint>

namespace heddle {

inline std::uint64_t now_ns() {
  const auto since_boot = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since_boot).count());
}

}  // namespace heddle
