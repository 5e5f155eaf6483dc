// Sizes that are part of kernel arguments and of the wire.
#pragma once

namespace heddle {

inline constexpr int kMaxRanks = 128;
inline constexpr int kMaxTopk = 64;

}  // namespace heddle
