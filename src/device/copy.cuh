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

/// What a warp has in flight: kAhead times 16 bytes a lane, a row of 7168 bytes with 14 of them. A chain of smaller loads is a
/// chain of waits for memory. Lanes are 32, so that all addresses are one and a constant.
template <int kAhead>
struct CopyBatch {
  uint4 words[kAhead];

  __device__ void load(const uint4* from) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) words[k] = from[k * 32];
  }
  __device__ void store(uint4* to) const {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) to[k * 32] = words[k];
  }
};

/// As many batches of this size as fit; store(batch, word) by all lanes.
template <int kAhead, class Store>
__device__ void each_batch(uint32_t& word, uint32_t words, const uint4* src, const Store& store) {
  for (; word + kAhead * 32 <= words; word += kAhead * 32) {
    CopyBatch<kAhead> batch;
    batch.load(src + word);
    store(batch, word);
  }
}

/// Rows whose address or length is no multiple of 16. Not inlined, nor fast: it would crowd out what matters.
template <class Word>
__device__ __noinline__ void lanes_copy_odd(Lanes lanes, void* dst, const void* src, size_t bytes) {
  const size_t words = bytes / sizeof(Word);
#pragma unroll 4
  for (size_t i = lanes.lane; i < words; i += lanes.lanes) static_cast<Word*>(dst)[i] = static_cast<const Word*>(src)[i];
  for (size_t i = words * sizeof(Word) + lanes.lane; i < bytes; i += lanes.lanes) {
    static_cast<uint8_t*>(dst)[i] = static_cast<const uint8_t*>(src)[i];
  }
}

/// All lanes of the warp take every turn of the loops, since dst(k) may be told by lanes.
template <class Dst>
__device__ void lanes_copy_to_many(Lanes lanes, int count, const void* src, size_t bytes, const Dst& dst) {
  auto low_bits = reinterpret_cast<uintptr_t>(src) | bytes;
  bool any = false;
  for (int k = 0; k < count; ++k) {
    const void* to = dst(k);
    any |= to != nullptr;
    low_bits |= reinterpret_cast<uintptr_t>(to);
  }
  if (!any) return;
  if (low_bits % sizeof(uint4) != 0 || lanes.lanes != 32) {
    for (int k = 0; k < count; ++k) {
      void* to = dst(k);
      if (to == nullptr) continue;
      if (low_bits % sizeof(uint32_t) == 0) lanes_copy_odd<uint32_t>(lanes, to, src, bytes);
      else lanes_copy_odd<uint8_t>(lanes, to, src, bytes);
    }
    return;
  }
  const auto words = static_cast<uint32_t>(bytes / sizeof(uint4));
  const uint4* from = static_cast<const uint4*>(src) + lanes.lane;
  const auto store = [&](const auto& batch, uint32_t at) {
    for (int k = 0; k < count; ++k) {
      if (void* to = dst(k)) batch.store(static_cast<uint4*>(to) + lanes.lane + at);
    }
  };
  uint32_t word = 0;
  each_batch<14>(word, words, from, store);
  each_batch<7>(word, words, from, store);
  each_batch<2>(word, words, from, store);
  each_batch<1>(word, words, from, store);
  const bool is_mine = word + lanes.lane < words;
  const uint4 last = is_mine ? from[word] : make_uint4(0, 0, 0, 0);
  for (int k = 0; k < count; ++k) {
    if (void* to = dst(k); to != nullptr && is_mine) (static_cast<uint4*>(to) + lanes.lane)[word] = last;
  }
}

__device__ inline void lanes_copy(Lanes lanes, void* dst, const void* src, size_t bytes) {
  lanes_copy_to_many(lanes, 1, src, bytes, [&](int) { return dst; });
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
