// Puts of one rank that are on their way: each has its own bytes and its own counter, and lands when and in the order that
// a seed says. Nobody but the sender's own threads lands them, so a receiver sees only what the counters order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/peer_view.hpp"
#include "protocol/port.hpp"
#include "support/dice.hpp"

namespace heddle::testing {

class PutQueue {
 public:
  PutQueue(const PeerView& windows, const PeerView& heap, uint64_t seed);
  ~PutQueue() { land_all(); }

  /// Memory for exactly `bytes`; put() takes it back.
  std::byte* stage(int64_t bytes);
  void put(const Target&, const std::byte* staged, int64_t bytes, int64_t counter);
  void add(int peer, int64_t counter, int64_t n);

  /// A moment passes; what is due lands.
  void progress();
  void land_all();

 private:
  struct Put {
    Target target;
    std::unique_ptr<std::byte[]> bytes;
    int64_t size = 0;
    int64_t counter = 0;
    int64_t n = 0;
    uint64_t due = 0;
  };

  void post(Put);
  void land(std::vector<Put>) const;

  PeerView windows_;
  PeerView heap_;
  std::mutex mutex_;
  std::vector<Put> puts_;
  std::atomic<size_t> waiting_ = 0;  // = puts_.size(), to ask without the lock
  uint64_t moment_ = 0;
  Dice dice_;
  int patience_[2][2];  // how many moments a put may take: [carries bytes][to an odd peer]
};

}  // namespace heddle::testing
