// Ranks that are threads and time the same work, turn by turn.
#pragma once

#include <barrier>
#include <functional>
#include <mutex>
#include <vector>

#include "cuda_timer.hpp"

namespace heddle::bench {

class Ranks {
 public:
  explicit Ranks(int count) : count_(count), barrier_(count), samples_(static_cast<size_t>(count)) {}

  int count() const { return count_; }
  void meet() { barrier_.arrive_and_wait(); }

  /// Collective. The slowest rank's time of each of `turns` turns, after a few that do not count.
  Spread time(int rank, Timer& timer, cudaStream_t stream, int turns, const std::function<void()>& work) {
    constexpr int kWarmUps = 5;
    std::vector<float>& own = samples_[static_cast<size_t>(rank)];
    own.clear();
    meet();
    for (int turn = 0; turn < kWarmUps + turns; ++turn) {
      const uint32_t number = turn_ + 1;
      timer.enqueue(gate_, number, stream, work);
      meet();  // everything is queued everywhere
      if (rank == 0) gate_.open(number);
      const float took = timer.microseconds();
      if (turn >= kWarmUps) own.push_back(took);
      meet();
      if (rank == 0) turn_ = number;
      meet();
    }
    return slowest();
  }

 private:
  Spread slowest() const {
    std::vector<float> worst = samples_[0];
    for (const auto& samples : samples_) {
      for (size_t i = 0; i < worst.size(); ++i) worst[i] = samples[i] > worst[i] ? samples[i] : worst[i];
    }
    return spread_of(worst);
  }

  const int count_;
  std::barrier<> barrier_;
  Gate gate_;
  uint32_t turn_ = 0;
  std::vector<std::vector<float>> samples_;
};

}  // namespace heddle::bench
