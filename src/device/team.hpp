// A few CPU threads that work on one step together.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "device/wait.hpp"

namespace heddle {

/// Sleeps until `passed()`, which others change under the lock before they notify; runs this thread's wait hook meanwhile.
template <class Passed>
void sleep_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, const Passed& passed) {
  constexpr auto kHookEvery = std::chrono::milliseconds(10);
  while (!changed.wait_for(lock, kHookEvery, passed)) {
    if (wait_hook.run == nullptr) continue;
    lock.unlock();
    wait_hook.run(wait_hook.argument);
    lock.lock();
  }
}

/// A barrier whose waiters go on running their wait hooks: std::barrier's would not.
class TeamBarrier {
 public:
  explicit TeamBarrier(int size) : size_(size), missing_(size) {}

  void arrive_and_wait() {
    const uint32_t round = round_.load(std::memory_order_relaxed);
    if (missing_.fetch_sub(1, std::memory_order_acq_rel) == 1) return open(round);
    const auto passed = [&] { return round_.load(std::memory_order_acquire) != round; };
    for (int attempt = 0; attempt < kSpins; ++attempt) {
      if (passed()) return;
      pause(attempt);
    }
    std::unique_lock lock(mutex_);
    sleep_until(opened_, lock, passed);
  }

 private:
  void open(uint32_t round) {
    missing_.store(size_, std::memory_order_relaxed);
    {
      const std::lock_guard lock(mutex_);
      round_.store(round + 1, std::memory_order_release);
    }
    opened_.notify_all();
  }

  static constexpr int kSpins = 64;

  const int size_;
  std::atomic<int> missing_;
  std::atomic<uint32_t> round_{0};
  std::mutex mutex_;
  std::condition_variable opened_;
};

class Team {
 public:
  Team(int index, int size, TeamBarrier& barrier) : index_(index), size_(size), barrier_(&barrier) {}
  int index() const { return index_; }
  int size() const { return size_; }
  int lane() const { return 0; }
  int lanes() const { return 1; }
  void sync() const { barrier_->arrive_and_wait(); }
  void worker_sync() const {}

 private:
  int index_;
  int size_;
  TeamBarrier* barrier_;
};

}  // namespace heddle
