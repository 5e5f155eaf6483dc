// The GPU's side of copy.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heddle {

/// Which part of an item a thread does: elements lane, lane + lanes, ...
struct Lanes {
  int lane;
  int lanes;
};

// One lane keeps four loads in flight; a plain loop waits for each.
inline constexpr int kCopyUnroll = 4;

/// Moves `count` words of type Word; both pointers are aligned to it.
template <class Word>
__device__ void lanes_copy_words(Lanes lanes, Word* dst, const Word* src, size_t count) {
  size_t i = lanes.lane;
  for (; i + (kCopyUnroll - 1) * lanes.lanes < count; i += kCopyUnroll * lanes.lanes) {
    Word words[kCopyUnroll];
#pragma unroll
    for (int k = 0; k < kCopyUnroll; ++k) words[k] = src[i + k * lanes.lanes];
#pragma unroll
    for (int k = 0; k < kCopyUnroll; ++k) dst[i + k * lanes.lanes] = words[k];
  }
  for (; i < count; i += lanes.lanes) dst[i] = src[i];
}

/// The whole words first, then the bytes left over.
template <class Word>
__device__ void lanes_copy_as(Lanes lanes, void* dst, const void* src, size_t bytes) {
  const size_t words = bytes / sizeof(Word), moved = words * sizeof(Word);
  lanes_copy_words(lanes, static_cast<Word*>(dst), static_cast<const Word*>(src), words);
  lanes_copy_words(lanes, static_cast<uint8_t*>(dst) + moved, static_cast<const uint8_t*>(src) + moved, bytes - moved);
}

__device__ inline void lanes_copy(Lanes lanes, void* dst, const void* src, size_t bytes) {
  const auto low_bits = reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src);
  if (low_bits % sizeof(uint4) == 0) return lanes_copy_as<uint4>(lanes, dst, src, bytes);
  if (low_bits % sizeof(uint32_t) == 0) return lanes_copy_as<uint32_t>(lanes, dst, src, bytes);
  lanes_copy_as<uint8_t>(lanes, dst, src, bytes);
}

__device__ inline void lanes_fill(Lanes lanes, void* dst, uint8_t value, size_t bytes) {
  auto* out = static_cast<uint8_t*>(dst);
  size_t done = 0;
  if (reinterpret_cast<uintptr_t>(dst) % sizeof(uint4) == 0) {
    const uint32_t word = value * 0x01010101u;
    const size_t words = bytes / sizeof(uint4);
    for (size_t i = lanes.lane; i < words; i += lanes.lanes)
      static_cast<uint4*>(dst)[i] = make_uint4(word, word, word, word);
    done = words * sizeof(uint4);
  }
  for (size_t i = done + lanes.lane; i < bytes; i += lanes.lanes) out[i] = value;
}

}  // namespace heddle
