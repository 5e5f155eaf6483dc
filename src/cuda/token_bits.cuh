// Bitmasks of tokens in a block's own memory, and how many tokens come before one of them.
#pragma once

#include <cstdint>

#include "cuda/decode.hpp"

namespace heddle {

/// Bitmasks of tokens, by columns.
struct TokenBits {
  uint32_t* bits;
  uint16_t* before;  // [columns][words + 1]
  int words;

  __device__ TokenBits(std::byte* memory, int columns, int tokens) {
    words = TokenSets::of(tokens).words;
    bits = reinterpret_cast<uint32_t*>(memory);
    before = reinterpret_cast<uint16_t*>(bits + columns * words);
  }

  __device__ bool has(int column, int token) const { return bits[column * words + token / 32] >> (token % 32) & 1; }
  __device__ void add(int column, int token) const { atomicOr(&bits[column * words + token / 32], 1u << (token % 32)); }
  __device__ int earlier(int column, int token) const {
    const uint32_t* set = bits + column * words;
    const int below = __popc(set[token / 32] & ((1u << (token % 32)) - 1));
    return (is_counted() ? before[column * (words + 1) + token / 32] : count_in(set, token / 32)) + below;
  }
  __device__ int all(int column) const {
    return is_counted() ? before[column * (words + 1) + words] : count_in(bits + column * words, words);
  }
  /// The same for the clerk, who does not wait for count().
  __device__ int count_before(int column, int token) const {
    const uint32_t* set = bits + column * words;
    return count_in(set, token / 32) + __popc(set[token / 32] & ((1u << (token % 32)) - 1));
  }
  __device__ int count_all(int column) const { return count_in(bits + column * words, words); }
  /// Few words are faster counted each time than once for all.
  __device__ bool is_counted() const { return words > 4; }

  /// By all threads of the block.
  __device__ void clear(int columns) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < columns * words; i += kDecodeThreads) bits[i] = 0;
  }
  /// By all threads but the clerk's, which then meet.
  __device__ void count(int columns) const {
    if (!is_counted()) return;
#pragma unroll 1
    for (int column = threadIdx.x; column < columns; column += kDecodeThreads) {
      int sum = 0;
#pragma unroll 1
      for (int word = 0; word < words; ++word) {
        before[column * (words + 1) + word] = static_cast<uint16_t>(sum);
        sum += __popc(bits[column * words + word]);
      }
      before[column * (words + 1) + words] = static_cast<uint16_t>(sum);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kDecodeThreads) : "memory");
  }

 private:
  __device__ static int count_in(const uint32_t* set, int count) {
    int sum = 0;
#pragma unroll 1
    for (int word = 0; word < count; ++word) sum += __popc(set[word]);
    return sum;
  }
};

}  // namespace heddle
