// Workers of many lanes, as on a GPU, on one CPU thread: each lane is a fiber. A step that forgets a worker_sync() or a sync()
// goes wrong here as it would there, and ThreadSanitizer takes each lane for a thread.
#pragma once

#include <sched.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "sim/fiber.hpp"
#include "support/dice.hpp"

namespace heddle::testing {

/// Lanes that wait for one another.
class LaneBarrier {
 public:
  explicit LaneBarrier(int members) : members_(members) {}

  void arrive_and_wait() {
    const uint64_t turn = turn_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members_) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      return;
    }
    while (turn_.load(std::memory_order_acquire) == turn) Fiber::current()->yield();
  }

 private:
  const int members_;
  std::atomic<int> arrived_{0};
  std::atomic<uint64_t> turn_{0};
};

struct LaneShape {
  int workers = 2;  // of all blocks together
  int lanes = 32;
  int blocks = 1;
};

class LaneCrew;
class LaneOfBlock;

/// The coop of one lane.
class Lane {
 public:
  Lane(LaneCrew& crew, int worker, int lane) : crew_(&crew), worker_(worker), lane_(lane) {}
  int index() const { return worker_; }
  int size() const;
  int lane() const { return lane_; }
  int lanes() const;
  void sync() const;
  void worker_sync() const;

  // See device/block.hpp.
  int block() const;
  int blocks() const;
  int thread() const;
  int threads() const;
  void block_sync() const;
  std::byte* shared() const;
  LaneOfBlock own_block() const;

 private:
  LaneCrew* crew_;
  int worker_;
  int lane_;
};

/// The coop of a lane's block alone.
class LaneOfBlock {
 public:
  explicit LaneOfBlock(const Lane& lane) : lane_(lane) {}
  int index() const { return lane_.index() % size(); }
  int size() const { return lane_.size() / lane_.blocks(); }
  int lane() const { return lane_.lane(); }
  int lanes() const { return lane_.lanes(); }
  void sync() const { lane_.block_sync(); }
  void worker_sync() const { lane_.worker_sync(); }

 private:
  Lane lane_;
};

class LaneCrew {
 public:
  LaneCrew(const LaneShape& shape, uint64_t seed) : shape_(shape), dice_(seed), all_(shape.workers * shape.lanes) {
    for (int worker = 0; worker < shape.workers; ++worker) {
      workers_.push_back(std::make_unique<LaneBarrier>(shape.lanes));
    }
    for (int block = 0; block < shape.blocks; ++block) {
      blocks_.push_back(std::make_unique<LaneBarrier>(size() / shape.blocks));
      shared_.emplace_back(kSharedBytes, std::byte{0x77});
    }
  }

  int size() const { return shape_.workers * shape_.lanes; }

  /// Runs step(lane) in every lane, in turns of random order, until all have ended; the leader's result.
  template <class Step>
  bool run(const Step& step) {
    bool result = false;
    for (int i = 0; i < size(); ++i) {
      begin(i, [this, &step, &result, i] {
        const bool ok = step(Lane(*this, i / shape_.lanes, i % shape_.lanes));
        if (i == 0) result = ok;
      });
    }
    while (resume_some()) sched_yield();  // peers are other threads
    for (const auto& fiber : fibers_) fiber->join();
    return result;
  }

 private:
  friend class Lane;

  void begin(int i, std::function<void()> body) {
    const auto at = static_cast<size_t>(i);
    if (at < fibers_.size()) fibers_[at]->restart(std::move(body));
    else fibers_.push_back(std::make_unique<Fiber>(std::move(body)));
  }

  bool resume_some() {
    bool some = false;
    const auto count = static_cast<int>(fibers_.size());
    const int first = dice_.below(count);
    for (int i = 0; i < count; ++i) {
      Fiber& fiber = *fibers_[static_cast<size_t>((first + i) % count)];
      if (fiber.has_ended()) continue;
      some = true;
      fiber.resume();
    }
    return some;
  }

  static constexpr size_t kSharedBytes = size_t{128} << 10;

  const LaneShape shape_;
  Dice dice_;
  LaneBarrier all_;
  std::vector<std::unique_ptr<LaneBarrier>> workers_;
  std::vector<std::unique_ptr<LaneBarrier>> blocks_;
  std::vector<std::vector<std::byte>> shared_;
  std::vector<std::unique_ptr<Fiber>> fibers_;  // of the lanes, from one run to the next
};

inline int Lane::size() const { return crew_->shape_.workers; }
inline int Lane::lanes() const { return crew_->shape_.lanes; }
inline void Lane::sync() const { crew_->all_.arrive_and_wait(); }
inline void Lane::worker_sync() const { crew_->workers_[static_cast<size_t>(worker_)]->arrive_and_wait(); }

inline int Lane::blocks() const { return crew_->shape_.blocks; }
inline int Lane::block() const { return worker_ / (size() / blocks()); }
inline int Lane::threads() const { return size() / blocks() * lanes(); }
inline int Lane::thread() const { return worker_ % (size() / blocks()) * lanes() + lane_; }
inline void Lane::block_sync() const { crew_->blocks_[static_cast<size_t>(block())]->arrive_and_wait(); }
inline LaneOfBlock Lane::own_block() const { return LaneOfBlock(*this); }
inline std::byte* Lane::shared() const { return crew_->shared_[static_cast<size_t>(block())].data(); }

}  // namespace heddle::testing
