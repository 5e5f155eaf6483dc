// One block of memory per rank that every rank reaches at the same address: threads from the heap, so that sanitizers see
// its borders; processes that are forked later from shared memory that ends at a forbidden page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/peer_view.hpp"

namespace heddle::testing {

enum class Sharing { threads, processes };

class SharedBlocks {
 public:
  SharedBlocks() = default;
  /// Zeroed; a block of 0 bytes is legal.
  SharedBlocks(Sharing, const std::vector<int64_t>& bytes);

  std::byte* block(int rank) const { return blocks_[static_cast<size_t>(rank)].get(); }
  int64_t bytes(int rank) const { return bytes_[static_cast<size_t>(rank)]; }
  PeerView seen_by(int rank) const;

 private:
  std::vector<int64_t> bytes_;
  std::vector<std::shared_ptr<std::byte>> blocks_;
};

}  // namespace heddle::testing
