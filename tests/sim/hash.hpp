// A quick hash, 64 bits: two of a million states fall together once in forty million explorations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace heddle::testing {

inline uint64_t mix(uint64_t h, uint64_t value) {
  h = (h ^ value) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 29);
}

inline uint64_t hash_bytes(uint64_t h, const void* memory, int64_t bytes) {
  const auto* at = static_cast<const std::byte*>(memory);
  int64_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, at + i, 8);
    h = mix(h, word);
  }
  for (; i < bytes; ++i) h = mix(h, static_cast<uint64_t>(at[i]));
  return mix(h, static_cast<uint64_t>(bytes));
}

}  // namespace heddle::testing
