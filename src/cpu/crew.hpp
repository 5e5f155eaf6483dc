// The CPU threads that work on one call: the caller alone (Solo), or the caller and a few that sleep between calls (Team).
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "device/coop.hpp"
#include "device/team.hpp"

namespace heddle {

class Crew {
 public:
  explicit Crew(int threads);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  int size() const { return static_cast<int>(helpers_.size()) + 1; }

  /// Runs step(coop) on every member and returns the caller's result; all members get the same one.
  template <class Step>
  auto run(const Step& step) {
    if (helpers_.empty()) return step(Solo{});
    start([&](const Team& team) { step(team); });
    const auto result = step(Team(0, size(), barrier_));
    finish();
    return result;
  }

 private:
  void start(std::function<void(const Team&)> step);
  void finish();
  void serve(int index);

  TeamBarrier barrier_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void(const Team&)> step_;
  uint64_t round_ = 0;
  int running_ = 0;
  bool leaving_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace heddle
