// Pieces of memory that a rank makes one by one and shares with other processes, each mapped at a place of its own in a range
// of addresses that was reserved before.
#pragma once

#include <cstdint>
#include <memory>

#include "base/descriptor.hpp"

namespace heddle {

/// Addresses, and the segments mapped there; all is unmapped at its end. One thread at a time.
class SegmentRange {
 public:
  virtual ~SegmentRange() = default;
  virtual std::byte* first() const = 0;
  /// `offset` and `bytes` in whole units. Throws Error{system}, or Error{mismatch} if the descriptor is not of such memory.
  virtual void map(const Descriptor&, int64_t offset, int64_t bytes) = 0;
};

/// Any thread.
class Segments {
 public:
  virtual ~Segments() = default;
  virtual int64_t unit() const = 0;
  /// Addresses without memory, for the segments of `owner`. Throws Error{system}.
  virtual std::shared_ptr<SegmentRange> reserve(int64_t bytes, int owner) = 0;
  /// Memory that lives as long as its descriptor or a mapping of it. Throws Error{system}.
  virtual Descriptor make(int64_t bytes) = 0;
};

/// Host memory (memfd.hpp).
std::shared_ptr<Segments> host_segments();

}  // namespace heddle
