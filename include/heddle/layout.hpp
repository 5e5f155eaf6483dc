// The choices of a dispatch and of a combine.
#pragma once

#include <heddle/macros.hpp>

#include <cstdint>

namespace heddle {

enum class Layout : uint8_t {
  token_major = 0,   // one row a token, by source rank, then token order; local expert ids beside it
  expert_major = 1,  // one row a (token, expert), grouped by expert
  slab = 2           // the same in [local experts, ranks x max tokens]
};

/// How the scales of received rows lie, in 32-bit words.
enum class ScaleLayout : uint8_t {
  usual = 0,  // row-major; in a slab column-major for each expert
  tiles = 1   // 128 rows x 4 scales a tile, as grouped GEMMs of NVFP4 and MXFP8 read them; scales of one byte only
};

/// Values travel in headers: never renumber.
enum class Quantise : uint8_t {
  none = 0,      // the row's bytes as they are
  fp8 = 1,       // e4m3 and FP32 scales
  fp8_pow2 = 2,  // e4m3 and FP32 scales that are powers of two
  fp8_ue8m0 = 3, // the same scales as exponent bytes, four to a 32-bit word, lowest byte first
  fp8_row = 4,   // e4m3 and one FP32 scale for the whole row
  mxfp8 = 5,     // e4m3 and an exponent byte for each 32 channels, packed likewise
  nvfp4 = 6      // e2m1, two to a byte, and an e4m3 scale for each 16 channels, packed likewise; see global_scale
};

/// What of a combine crosses the wire. Narrow ones lose what docs/protocol.md, I8, says.
enum class ResultWire : uint8_t {
  usual = 0,    // partial sums in the result's dtype; rows that travel alone in theirs
  float32 = 1,
  fp8 = 2,      // e4m3 and an FP32 scale for each 128 columns: 8.25 bits a column
  logfmt10 = 3  // a sign and a 9-bit logarithm between the block's smallest and largest: 10.25 bits
};

constexpr HEDDLE_HD bool is_packed(ResultWire wire) { return wire == ResultWire::fp8 || wire == ResultWire::logfmt10; }

}  // namespace heddle
