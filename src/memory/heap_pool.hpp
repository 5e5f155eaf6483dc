// Blocks of a rank's symmetric heap, for outputs into which peers write rows (I14).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "memory/symmetric_heap.hpp"

namespace heddle {

/// Any thread. Blocks may outlive the pool. Whoever gets a block must use it after those who used it before, which holds where
/// all calls of a buffer run in one order.
class HeapPool : public std::enable_shared_from_this<HeapPool> {
 public:
  /// Who must be able to write to a block.
  enum class Reach { all_peers, nobody_yet };

  struct Block {
    std::shared_ptr<void> memory;
    int64_t offset;  // in the heap
  };

  /// The heap grows by `step` bytes at least.
  HeapPool(std::shared_ptr<SymmetricHeap> heap, int64_t step) : heap_(std::move(heap)), step_(step) {}

  /// 256-aligned memory; nothing if the heap is full, or if peers that shall reach it have yet to map what it has just grown
  /// by.
  std::optional<Block> take(int64_t bytes, Reach = Reach::all_peers);

 private:
  std::optional<int64_t> find(int64_t bytes, int64_t end) const;
  bool grow(int64_t bytes);
  void carve(int64_t offset, int64_t bytes);
  void give(int64_t first, int64_t end);
  void give_locked(int64_t first, int64_t end);

  const std::shared_ptr<SymmetricHeap> heap_;
  const int64_t step_;
  std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // first to end; no two touch
};

}  // namespace heddle
