// Cuts a region into parts, each once; the total is the carver's end.
#pragma once

#include <cstdint>

#include "base/macros.hpp"

namespace heddle {

inline constexpr int64_t kCellAlign = 128;

class Carver {
 public:
  HEDDLE_HD constexpr explicit Carver(int64_t start = 0) : end_(start) {}

  /// Offset of a part of `bytes`, a multiple of `align` (a power of two).
  HEDDLE_HD constexpr int64_t take(int64_t bytes, int64_t align = kCellAlign) {
    const int64_t at = (end_ + align - 1) / align * align;
    end_ = at + bytes;
    return at;
  }
  HEDDLE_HD constexpr int64_t end() const { return end_; }

 private:
  int64_t end_;
};

}  // namespace heddle
