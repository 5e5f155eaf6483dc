// The choices of a dispatch.
#pragma once

#include <cstdint>

namespace heddle {

enum class Layout : uint8_t {
  token_major = 0,   // one row a token, by source rank, then token order; local expert ids beside it
  expert_major = 1,  // one row a (token, expert), grouped by expert
  slab = 2           // the same in [local experts, ranks x max tokens]
};

/// Values travel in headers: never renumber.
enum class Quantise : uint8_t {
  none = 0,      // the row's bytes as they are
  fp8 = 1,       // e4m3 and FP32 scales
  fp8_pow2 = 2,  // e4m3 and FP32 scales that are powers of two
  fp8_ue8m0 = 3  // the same scales as exponent bytes, four to a 32-bit word, lowest byte first
};

}  // namespace heddle
