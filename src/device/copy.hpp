// Moving, clearing and filling bytes by the lanes of one worker. Regions do not overlap. No sync inside: follow a call with
// coop.worker_sync() where other lanes read what was written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/macros.hpp"

#ifdef __CUDACC__
#include "device/copy.cuh"
#endif

namespace heddle {

/// Fastest where dst and src are both 16-aligned; any alignment is right.
template <class Coop>
HEDDLE_HD void copy_bytes(const Coop& coop, void* dst, const void* src, size_t bytes) {
#if HEDDLE_ON_DEVICE
  lanes_copy({coop.lane(), coop.lanes()}, dst, src, bytes);
#else
  if (coop.lane() == 0 && bytes > 0) std::memcpy(dst, src, bytes);
#endif
}

/// To all of dst(0), ..., dst(count - 1) that are not null, reading src once; on a GPU dst(k) may be told by lanes.
template <class Coop, class Dst>
HEDDLE_HD void copy_to_many(const Coop& coop, int count, const void* src, size_t bytes, const Dst& dst) {
#if HEDDLE_ON_DEVICE
  lanes_copy_to_many({coop.lane(), coop.lanes()}, count, src, bytes, dst);
#else
  for (int k = 0; coop.lane() == 0 && bytes > 0 && k < count; ++k) {
    if (void* to = dst(k)) std::memcpy(to, src, bytes);
  }
#endif
}

template <class Coop>
HEDDLE_HD void fill_bytes(const Coop& coop, void* dst, uint8_t value, size_t bytes) {
#if HEDDLE_ON_DEVICE
  lanes_fill({coop.lane(), coop.lanes()}, dst, value, bytes);
#else
  if (coop.lane() == 0 && bytes > 0) std::memset(dst, value, bytes);
#endif
}

template <class Coop>
HEDDLE_HD void zero_bytes(const Coop& coop, void* dst, size_t bytes) {
  fill_bytes(coop, dst, 0, bytes);
}

/// A run of 4-byte words that lie `stride` words apart.
template <class Word>
struct Strided {
  Word* words;
  int64_t stride;
};

/// For scales, which callers keep row-major, column-major or transposed: dst.words[i * dst.stride] = src.words[i * src.stride].
template <class Coop>
HEDDLE_HD void copy_strided_words(const Coop& coop, Strided<uint32_t> dst, Strided<const uint32_t> src, int64_t count) {
#if !HEDDLE_ON_DEVICE
  if (dst.stride == 1 && src.stride == 1) {
    copy_bytes(coop, dst.words, src.words, static_cast<size_t>(count) * sizeof(uint32_t));
    return;
  }
#endif
  for (int64_t i = coop.lane(); i < count; i += coop.lanes()) dst.words[i * dst.stride] = src.words[i * src.stride];
}

}  // namespace heddle
