#include "base/host_memory.hpp"

#include <sys/mman.h>

#include <cstdlib>

#include "base/error.hpp"

namespace heddle {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kMostKept = 0;  // a freed output must be seen as freed
#else
constexpr size_t kMostKept = size_t{512} << 20;
#endif
constexpr size_t kLeastKept = size_t{64} << 10;  // malloc is good at what is smaller

bool is_huge(size_t bytes) { return bytes >= 2 * kHugePage; }

size_t padded(size_t bytes) {
  const size_t unit = is_huge(bytes) ? kHugePage : kCacheLine;
  return (bytes / unit + 1) * unit;
}

void* allocate(size_t size) {
  void* memory = std::aligned_alloc(is_huge(size) ? kHugePage : kCacheLine, size);
  if (memory == nullptr) fail(ErrorCode::system, "out of memory: {} bytes for an output", size);
  if (is_huge(size)) ::madvise(memory, size, MADV_HUGEPAGE);
  return memory;
}

}  // namespace

HostBlocks::~HostBlocks() {
  for (const auto& [size, memory] : free_) std::free(memory);
}

std::shared_ptr<void> HostBlocks::take(size_t bytes) {
  const size_t size = padded(bytes);
  if (size < kLeastKept) return {allocate(size), std::free};
  Block block = find(size);
  if (block.memory == nullptr) block = {allocate(size), size};
  return {block.memory, [this, size = block.size](void* memory) { give_back({memory, size}); }};
}

size_t HostBlocks::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_;
}

/// The smallest free block that holds `size` and wastes a quarter at most.
HostBlocks::Block HostBlocks::find(size_t size) {
  const std::lock_guard lock(mutex_);
  const auto best = free_.lower_bound(size);
  if (best == free_.end() || best->first > size + size / 4) return {nullptr, 0};
  const Block block{best->second, best->first};
  free_.erase(best);
  kept_ -= block.size;
  return block;
}

void HostBlocks::give_back(const Block& block) {
  {
    const std::lock_guard lock(mutex_);
    if (kept_ + block.size <= most_kept_) {
      free_.emplace(block.size, block.memory);
      kept_ += block.size;
      return;
    }
  }
  std::free(block.memory);
}

/// Never destroyed: outputs may outlive everything else in the process.
HostBlocks& host_blocks() {
  static HostBlocks& blocks = *new HostBlocks(kMostKept);
  return blocks;
}

}  // namespace heddle
