// The cast of a row to e4m3 with one scale for each block of 128 channels, as low-latency dispatch does it.
//   a      = the largest finite |x| of the block, at least 1e-4
//   fp8    scale = a * fl(1/448)                                 q = e4m3(x * (448 / a))
//   pow2   scale = the smallest power of two >= a * fl(1/448)    q = e4m3(x * (1 / scale))
//   ue8m0  the same scale, kept as its exponent byte             the same q
// Scales are finite and > 0 for any input. NaN becomes e4m3's NaN and +-Inf becomes +-448; the others of the block are as if
// those were absent.
#pragma once

#include "base/dtype.hpp"
#include "base/macros.hpp"
#include "device/copy.hpp"
#include "device/quantise_args.hpp"
#include "device/quantise_scale.hpp"

#ifdef __CUDACC__
#include "device/quantise.cuh"
#endif

namespace heddle {

/// The host's side; throws Error{usage} for another x_dtype than f32, bf16 and f16, or another mode.
void host_quantise_row(const QuantiseArgs&);

/// Writes q and all scale words, by the lanes of one worker; no sync inside. Quantise::none copies x's bytes to q.
/// x needs its element's alignment, scales 4; x 16 and q 8 are fastest.
template <class Coop>
HEDDLE_HD void quantise_row(const Coop& coop, const QuantiseArgs& args) {
  if (args.mode == Quantise::none) {
    copy_bytes(coop, args.q, args.x, static_cast<size_t>(args.hidden) * size_of(args.x_dtype));
    return;
  }
#if HEDDLE_ON_DEVICE
  lanes_quantise_row({coop.lane(), coop.lanes()}, args);
#else
  if (coop.lane() == 0) host_quantise_row(args);
#endif
}

struct QuantisedRow {
  const uint8_t* q;
  const void* scales;
  Quantise mode;  // not none
};

/// What channel i of a quantised row stands for.
HEDDLE_HD inline float dequantise(const QuantisedRow& row, int64_t i) {
  return to_float(e4m3{row.q[i]}) * read_scale(row.scales, row.mode, i / kQuantiseBlock);
}

}  // namespace heddle
