// What all ranks agree on for one call. Its hash travels in the header (I7); T, streams and SMs are not in it.
#pragma once

#include <heddle/layout.hpp>

#include <cstdint>

#include "base/dtype.hpp"
#include "base/macros.hpp"

namespace heddle {

enum class Kind : uint8_t { dispatch = 0, combine = 1 };
inline constexpr int kKinds = 2;
inline constexpr int kLanes = 2;

/// Where the weights of a combine come from. `late`: the source puts them to the owners in its header's table.
enum class Weights : uint8_t { none = 0, at_owner = 1, late = 2, at_source = 3 };

struct Shape {
  Kind kind = Kind::dispatch;
  Layout layout = Layout::token_major;
  Weights weights = Weights::none;  // combine only; at_source means that rows travel unreduced
  Quantise quantise{};              // dispatch only
  ResultWire result_wire{};         // combine only
  DType dtype = DType::u8;          // of x as given
  DType wire = DType::u8;           // of the row on the wire; packed: bytes
  bool split = false;               // low latency: may be split, never uses offers
  bool cached = false;              // dispatch with the handle of an earlier one
  bool row_weights = false;         // combine returns weights too (the weights' gradient)
  int32_t payload_bytes = 0;        // of the row on the wire
  int32_t scale_words = 0;          // 4-byte words that travel with a row
  int32_t topk = 0;
  int32_t experts = 0;
  int32_t alignment = 1;
  int32_t max_tokens = 0;  // 0 = no limit

  HEDDLE_HD constexpr uint64_t hash() const {
    const int64_t fields[] = {static_cast<int64_t>(kind), static_cast<int64_t>(layout), static_cast<int64_t>(weights),
                              static_cast<int64_t>(quantise), static_cast<int64_t>(result_wire), static_cast<int64_t>(dtype),
                              static_cast<int64_t>(wire), split, cached, row_weights, payload_bytes, scale_words, topk, experts, alignment,
                              max_tokens};
    uint64_t h = 0xcbf29ce484222325ull;
    for (int64_t field : fields) h = (h ^ static_cast<uint64_t>(field)) * 0x100000001b3ull;
    return h ^ (h >> 32);
  }
};

}  // namespace heddle
