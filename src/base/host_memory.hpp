// Host memory for outputs. A call's outputs are as large as the last call's, and fresh memory costs a page fault every 4 KiB
// or the clearing of large pages, so freed blocks are kept for a while.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

namespace heddle {

/// Any thread. Blocks may outlive the cache's owner only if the cache is host_blocks().
class HostBlocks {
 public:
  explicit HostBlocks(size_t most_kept) : most_kept_(most_kept) {}
  ~HostBlocks();

  /// At least `bytes`, 64-byte aligned, not cleared. Throws Error{system}.
  std::shared_ptr<void> take(size_t bytes);
  size_t kept() const;

 private:
  struct Block {
    void* memory;
    size_t size;
  };
  Block find(size_t size);
  void give_back(const Block&);

  const size_t most_kept_;
  mutable std::mutex mutex_;
  std::multimap<size_t, void*> free_;
  size_t kept_ = 0;
};

/// The process's, which keeps 512 MiB at most.
HostBlocks& host_blocks();

}  // namespace heddle
