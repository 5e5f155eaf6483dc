// Worlds small enough to work out by hand.
#pragma once

#include <gmock/gmock.h>

#include <cstring>
#include <limits>

#include "spec/combine.hpp"
#include "spec/plan.hpp"

namespace heddle::spec {

using Ids = std::vector<std::int32_t>;
using Floats = std::vector<float>;

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// `ids` and `weights` by rank. A row is one byte: 10 * rank + token.
inline World tiny_world(int experts, int topk, const std::vector<Ids>& ids, const std::vector<Floats>& weights = {}) {
  World world{.ranks = static_cast<int>(ids.size()),
              .experts = experts,
              .topk = topk,
              .hidden = 1,
              .row_bytes = 1,
              .scale_words = 0,
              .batches = {}};
  for (int rank = 0; rank < world.ranks; ++rank) {
    Batch batch{.tokens = static_cast<int>(ids[rank].size()) / topk,
                .rows = {},
                .scales = {},
                .ids = ids[rank],
                .rank_map = {},
                .weights = weights.empty() ? Floats{} : weights[rank]};
    for (int token = 0; token < batch.tokens; ++token) batch.rows.push_back(static_cast<std::byte>(10 * rank + token));
    world.batches.push_back(batch);
  }
  return world;
}

/// Two ranks of two experts each. Rank 0 owns experts 0 and 1, rank 1 owns 2 and 3.
inline World two_ranks() {
  return tiny_world(4, 2, {{0, 2, 3, -1, 1, 0}, {2, 3, -1, -1, 0, 3}},
                    {{1, 2, 3, kNan, 4, 5}, {6, 7, kNan, kNan, 8, 9}});
}

inline std::vector<int> numbers(const Bytes& bytes) {
  std::vector<int> values;
  for (std::byte value : bytes) values.push_back(std::to_integer<int>(value));
  return values;
}

template <class T>
Bytes bytes_of(const std::vector<T>& elements) {
  Bytes bytes(elements.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

inline Bytes bf16_bytes(const Floats& values) {
  std::vector<bf16> elements;
  for (float value : values) elements.push_back(to_bf16(value));
  return bytes_of(elements);
}

inline Floats f32_values(const Bytes& bytes) {
  Floats values(bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline Floats bf16_values(const Bytes& bytes) {
  Floats values;
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    bf16 element;
    std::memcpy(&element, &bytes[i], 2);
    values.push_back(to_float(element));
  }
  return values;
}

}  // namespace heddle::spec
