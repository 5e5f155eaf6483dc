// A Port whose puts are late and out of order, as on a network that promises nothing but the counters.
#pragma once

#include <memory>
#include <utility>

#include "support/ports/put_queue.hpp"

namespace heddle::testing {

class ReorderingPort {
 public:
  ReorderingPort(std::byte* local, std::shared_ptr<PutQueue> queue) : local_(local), queue_(std::move(queue)) {}

  std::byte* local() const { return local_; }
  std::byte* stage(const Target&, int64_t bytes) const { return queue_->stage(bytes); }
  void put(const Target& target, const std::byte* at, int64_t bytes, int64_t counter) const {
    queue_->put(target, at, bytes, counter);
  }
  /// Every put counts itself.
  template <class Coop>
  void flush(const Coop& coop, int, int64_t, int64_t) const {
    coop.worker_sync();
    queue_->progress();
  }
  void add(int peer, int64_t counter, int64_t n) const { queue_->add(peer, counter, n); }
  void drain() const { queue_->land_all(); }

  uint64_t now() const {
    queue_->progress();
    return clock_ns();
  }
  void relax(int attempt) const {
    queue_->progress();
    pause(attempt);
  }

 private:
  std::byte* local_;
  std::shared_ptr<PutQueue> queue_;
};

}  // namespace heddle::testing
