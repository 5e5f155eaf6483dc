// One rank's part of a symmetric heap (I14). Free memory holds a pattern, so that a row which lands after its block was
// given back is found out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "ops/calls.hpp"

namespace heddle::testing {

class TestHeap : public std::enable_shared_from_this<TestHeap> {
 public:
  TestHeap(std::byte* memory, int64_t bytes);

  /// First fit; nothing if it is full. A test failure if the memory was written to while it was free.
  std::optional<HeapBlock> allocate(int64_t bytes);
  /// A test failure if free memory was written to.
  void check_free_memory() const;

 private:
  void give_back(int64_t offset);
  std::optional<int64_t> first_gap(int64_t bytes) const;
  void check_free(int64_t first, int64_t end) const;

  std::byte* memory_;
  int64_t bytes_;
  std::map<int64_t, int64_t> used_;  // offset to end
};

}  // namespace heddle::testing
