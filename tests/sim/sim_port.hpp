// A Port of the simulation: every wait gives the turn away, every put is on its way until the universe lands it.
#pragma once

#include "protocol/port.hpp"
#include "sim/universe.hpp"

namespace heddle::testing {

class SimPort {
 public:
  SimPort(Universe& universe, int rank) : universe_(&universe), rank_(rank), window_(universe.window(rank)) {}

  std::byte* local() const { return window_; }
  std::byte* stage(const Target& target, int64_t bytes) const { return universe_->stage(rank_, place(target), bytes); }
  void put(const Target& target, const std::byte* at, int64_t bytes, int64_t counter) const {
    universe_->put(rank_, place(target), at, bytes, counter);
  }
  template <class Coop>
  void flush(const Coop& coop, int peer, int64_t counter, int64_t n) const {
    coop.worker_sync();
    if (universe_->is_direct() && coop.lane() == 0 && n > 0) add(peer, counter, n);
  }
  void add(int peer, int64_t counter, int64_t n) const { universe_->add(rank_, peer, counter, n); }
  void drain() const { universe_->drain(rank_); }
  uint64_t now() const { return universe_->now(rank_); }
  void relax(int) const { universe_->relax(rank_); }

 private:
  static Universe::Place place(const Target& target) {
    return {.peer = target.peer, .segment = target.segment, .offset = target.offset};
  }

  Universe* universe_;
  int rank_;
  std::byte* window_;
};

}  // namespace heddle::testing
