// A heap on every rank that grows by segments. Near ranks map each new segment in the background, always at the same offset
// from where they see the heap begin; what all of them have mapped may be offered for rows in place (I14).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "device/peer_view.hpp"
#include "memory/segments.hpp"

namespace heddle {

class Bootstrap;

/// Any thread may use it. Its memory stays mapped here while a block or the heap lives, and at peers while their heaps do.
class SymmetricHeap {
 public:
  /// Collective; throws on all ranks or on none. `limit` bytes of addresses for each rank's heap, in whole units.
  SymmetricHeap(Bootstrap&, std::shared_ptr<Segments>, int64_t limit);
  ~SymmetricHeap();
  SymmetricHeap(const SymmetricHeap&) = delete;

  /// A new segment of at least `bytes`, at the heap's end; nobody else gets it. Returns before peers have it.
  /// Throws Error{system} if memory or addresses are used up.
  std::shared_ptr<std::byte> grow(int64_t bytes);

  /// Where the heap of each rank begins, seen from here; nullptr = far.
  PeerView view() const;
  int64_t unit() const;
  /// Bytes of addresses of each rank's heap.
  int64_t limit() const;
  /// Bytes from the heap's begin that are mapped here, and by every near rank.
  int64_t mapped() const;
  int64_t imported() const;
  /// Where in the heap this memory lies, if every near rank can write to all of it.
  std::optional<int64_t> offset_of(const void* memory, int64_t bytes) const;

 private:
  class Inside;
  std::shared_ptr<Inside> inside_;
};

}  // namespace heddle
