#include "base/word_watch.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace heddle {
namespace {

using namespace std::chrono_literals;

class Words : public ::testing::Test {
 protected:
  void set(uint64_t value) { std::atomic_ref<uint64_t>(*word_).store(value, std::memory_order_release); }
  /// Until it has been told so often; only a defect waits to the end.
  bool is_told(int times) {
    for (int i = 0; i < 1000 && told_ < times; ++i) std::this_thread::sleep_for(10ms);
    return told_ == times;
  }
  std::function<void()> tell() {
    return [this] { ++told_; };
  }

  std::shared_ptr<uint64_t> word_ = std::make_shared<uint64_t>(0);
  std::atomic<int> told_{0};
};

TEST_F(Words, AreToldOnceEachTimeTheyAreSet) {
  const WordWatch watch(word_, tell());
  set(1);
  EXPECT_TRUE(is_told(1));
  std::this_thread::sleep_for(4 * WordWatch::kPatience);
  EXPECT_TRUE(is_told(1));
  set(0);
  std::this_thread::sleep_for(4 * WordWatch::kPatience);
  set(7);
  EXPECT_TRUE(is_told(2));
}

// What a caller has raised already is no news.
TEST_F(Words, ThatAreNoticedAreNotTold) {
  std::shared_ptr<uint64_t> other = std::make_shared<uint64_t>(1);
  std::atomic<int> told_of_other{0};
  WordWatch watch(word_, tell());
  const WordWatch beside(other, [&] { ++told_of_other; });
  watch.noticed();
  set(1);
  watch.noticed();  // the watcher may have looked between the two
  while (told_of_other == 0) std::this_thread::sleep_for(10ms);
  std::this_thread::sleep_for(2 * WordWatch::kPatience);
  EXPECT_EQ(told_, 0);
}

TEST_F(Words, MayComeAndGoFromManyThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this] {
      for (int turn = 0; turn < 20; ++turn) const WordWatch watch(word_, tell());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(told_, 0);
}

}  // namespace
}  // namespace heddle
