// How a counted put reaches a peer (design: one wire verb). A row is built where the port says, so that a near peer gets it
// without a copy:
//   at = port.stage(target, bytes)               memory to build the bytes in; all lanes of a worker get the same
//   port.put(target, at, bytes, counter)         sends them; counts 1 at the peer
//   port.flush(coop, peer, counter, n)           this worker's n puts since its last flush may be seen now
//   port.add(peer, counter, n)                   a put of no bytes that counts n (one lane)
//   port.mark(peer, offset, value)               near peers only: a word there shows value, as a counter would (one lane)
//   port.drain()                                 host only: returns once all puts of this rank have landed
// A counter that shows a put implies that put's bytes and nothing else. Ports that count each put by itself do nothing in
// flush(); DirectPort stores at once and lets flush() announce many rows with one add.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/macros.hpp"
#include "device/atomic.hpp"
#include "device/clock.hpp"
#include "device/wait.hpp"
#include "layout/limits.hpp"
#include "device/peer_view.hpp"

namespace heddle {

/// A place at a peer: segment 0 is its window, others belong to its symmetric heap (I14).
struct Target {
  int peer = 0;
  int segment = 0;
  int64_t offset = 0;
};

/// The peer's memory is reached by load and store: threads, shared memory, NVLink.
class DirectPort {
 public:
  static constexpr bool kFlushCounts = true;  // put() needs no counter

  HEDDLE_HD DirectPort(const PeerView& windows, const PeerView& heap) : windows_(windows), heap_(heap) {}

  HEDDLE_HD std::byte* local() const { return windows_.local(); }
  HEDDLE_HD std::byte* stage(const Target& target, int64_t) const {
    return (target.segment == 0 ? windows_ : heap_).peer(target.peer) + target.offset;
  }
  HEDDLE_HD void put(const Target&, const std::byte*, int64_t, int64_t) const {}

  template <class Coop>
  HEDDLE_HD void flush(const Coop& coop, int peer, int64_t counter, int64_t n) const {
    coop.worker_sync();  // the lane that announces must come after the lanes that stored
    if (coop.lane() == 0 && n > 0) add(peer, counter, n);
  }
  HEDDLE_HD void add(int peer, int64_t counter, int64_t n) const {
    add_release(reinterpret_cast<uint64_t*>(windows_.peer(peer) + counter), static_cast<uint64_t>(n));
  }

  HEDDLE_HD void mark(int peer, int64_t offset, uint64_t value) const {
    store_release(reinterpret_cast<uint64_t*>(windows_.peer(peer) + offset), value);
  }
  /// For whoever announces for others (device/board.hpp).
  HEDDLE_HD uint64_t* word_at(int peer, int64_t offset) const {
    return reinterpret_cast<uint64_t*>(windows_.peer(peer) + offset);
  }
  void drain() const {}

  HEDDLE_HD uint64_t now() const { return clock_ns(); }
  HEDDLE_HD void relax(int attempt) const { pause(attempt); }

 private:
  PeerView windows_;
  PeerView heap_;
};

}  // namespace heddle
