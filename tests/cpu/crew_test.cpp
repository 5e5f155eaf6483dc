#include "cpu/crew.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "device/wait.hpp"

namespace heddle {
namespace {

/// Counts the wait hook's runs on this thread while it lives.
class CountedHook {
 public:
  CountedHook() {
    wait_hook = {.run = [](void* self) { ++static_cast<CountedHook*>(self)->runs_; }, .argument = this};
  }
  ~CountedHook() { wait_hook = {}; }
  int runs() const { return runs_; }

 private:
  std::atomic<int> runs_{0};
};

void wait_for_hook(const CountedHook& hook) {
  const std::uint64_t deadline = now_ns() + 60'000'000'000;
  while (hook.runs() < 3 && now_ns() < deadline) std::this_thread::yield();
  EXPECT_GE(hook.runs(), 3);
}

TEST(Crew, EveryMemberRunsAndSeesTheOthersWork) {
  for (const int threads : {1, 2, 5}) {
    Crew crew(threads);
    std::vector<int> written(static_cast<size_t>(threads));
    for (int round = 1; round <= 200; ++round) {
      const bool same = crew.run([&](const auto& coop) {
        bool all = true;
        for (int phase = 0; phase < 5; ++phase) {
          written[static_cast<size_t>(coop.index())] = round * 10 + phase;
          coop.sync();
          for (const int value : written) all = all && value == round * 10 + phase;
          coop.sync();
        }
        return all;
      });
      ASSERT_TRUE(same) << threads << " threads, round " << round;
    }
  }
}

// A person who presses Ctrl-C is heard, also where the caller waits for its own helpers.
TEST(Crew, TheCallersHookRunsWhileItWaitsAtABarrier) {
  Crew crew(3);
  const CountedHook hook;
  crew.run([&](const auto& coop) {
    if (coop.index() == 1) wait_for_hook(hook);
    coop.sync();
    return true;
  });
}

TEST(Crew, TheCallersHookRunsWhileHelpersFinish) {
  Crew crew(3);
  const CountedHook hook;
  crew.run([&](const auto& coop) {
    if (coop.index() == 2) wait_for_hook(hook);
    return true;
  });
}

}  // namespace
}  // namespace heddle
