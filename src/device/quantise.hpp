// The cast of a row to narrow elements with a scale for each block of channels, as low-latency dispatch does it.
//   a        the largest finite |x| of the block; in the fp8 modes at least 1e-4
//   fp8        128 channels   scale = a * fl(1/448)                                 q = e4m3(x * (448 / a))
//   fp8_row    the whole row  likewise
//   fp8_pow2   128            scale = the smallest power of two >= a * fl(1/448)    q = e4m3(x * (1 / scale))
//   fp8_ue8m0  128            the same scale, kept as its exponent byte             the same q
//   mxfp8      32             the same of a alone                                   the same q
//   nvfp4      16             scale = e4m3(G * (a * fl(1/6))), G the global scale   q = e2m1(x * (G / scale)), 0 if scale is
// nvfp4 stands for q * scale / G, the others for q * scale. Scales are finite for any input, but for a block of nvfp4 with
// NaN or Inf, which e2m1 lacks: its scale is NaN. Elsewhere NaN becomes e4m3's NaN and +-Inf becomes +-448; the others of
// the block are as if those were absent.
// mxfp8 is OCP's MX format with the scale rounded up, so that nothing saturates; nvfp4 is NVIDIA's.
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
/// q may lie where x does, if one lane or a whole warp does it, x is 16-aligned and hidden a multiple of 8.
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
  int64_t hidden;
  float global_scale = 1.0f;
};

/// What channel i of a quantised row stands for.
HEDDLE_HD inline float dequantise(const QuantisedRow& row, int64_t i) {
  const float scale = read_scale(row.scales, row.mode, i / scale_block(row.hidden, row.mode));
  if (row.mode != Quantise::nvfp4) return to_float(e4m3{row.q[i]}) * scale;
  const uint8_t pair = row.q[i / 2];
  const e2m1 element{static_cast<uint8_t>(i % 2 == 0 ? pair & 15 : pair >> 4)};
  return to_float(element) * (scale / row.global_scale);
}

}  // namespace heddle
