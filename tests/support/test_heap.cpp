#include "support/test_heap.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/math.hpp"
#include "layout/carver.hpp"

namespace heddle::testing {
namespace {

constexpr std::byte kFree{0xEE};

}  // namespace

TestHeap::TestHeap(std::byte* memory, int64_t bytes) : memory_(memory), bytes_(bytes) {
  if (bytes > 0) std::memset(memory, static_cast<int>(kFree), static_cast<size_t>(bytes));
}

std::optional<HeapBlock> TestHeap::allocate(int64_t bytes) {
  const int64_t room = std::max<int64_t>(bytes, 1);  // no two blocks at one place
  const std::optional<int64_t> offset = first_gap(room);
  if (!offset) return std::nullopt;
  check_free(*offset, *offset + room);
  used_[*offset] = *offset + room;
  std::shared_ptr<void> memory(memory_ + *offset, [heap = shared_from_this(), at = *offset](void*) { heap->give_back(at); });
  return HeapBlock{.memory = std::move(memory), .offset = *offset};
}

std::optional<int64_t> TestHeap::first_gap(int64_t bytes) const {
  int64_t offset = 0;
  for (const auto& [first, end] : used_) {
    if (first - offset >= bytes) break;
    offset = std::max(offset, round_up(end, kCellAlign));
  }
  if (offset + bytes > bytes_) return std::nullopt;
  return offset;
}

void TestHeap::give_back(int64_t offset) {
  const int64_t end = used_.at(offset);
  std::memset(memory_ + offset, static_cast<int>(kFree), static_cast<size_t>(end - offset));
  used_.erase(offset);
}

/// By comparison with a page of the pattern: sanitizers look at whole ranges then, not at each byte.
void TestHeap::check_free(int64_t first, int64_t end) const {
  static const std::vector<std::byte> page(4096, kFree);
  for (int64_t at = first; at < end; at += 4096) {
    const auto bytes = static_cast<size_t>(std::min<int64_t>(end - at, 4096));
    EXPECT_EQ(std::memcmp(memory_ + at, page.data(), bytes), 0)
        << "heap: memory was written to while it was free, between " << at << " and " << at + 4096;
  }
}

void TestHeap::check_free_memory() const {
  int64_t offset = 0;
  for (const auto& [first, end] : used_) {
    check_free(offset, first);
    offset = end;
  }
  check_free(offset, bytes_);
}

}  // namespace heddle::testing
