// What a front end in another language needs of a buffer: to end a wait, and to refuse arguments that it cannot hand over.
#include <heddle/heddle.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/errors.hpp"
#include "support/thread_ranks.hpp"

namespace heddle {
namespace {

using testing::error_of;
using testing::error_with;

constexpr int kHidden = 8;

struct OneToken {
  int32_t id = 1;  // of rank 1
  float row[kHidden] = {};

  Plan plan(Buffer& buffer) { return buffer.plan(view_of(&id, DType::i32, {1, 1})); }
  DispatchInput input() { return {.x = view_of(row, DType::f32, {1, kHidden})}; }
};

// Ctrl-C in Python: the rank leaves the call at once, its peers hear of it in the next, and reset() repairs both.
TEST(FrontEnd, InterruptEndsAWaitAndResetRepairs) {
  std::atomic<bool> was_interrupted = false;
  testing::run_threads(2, [&](Bootstrap& ranks) {
    const std::shared_ptr<Bootstrap> shared(&ranks, [](Bootstrap*) {});
    Buffer buffer(shared, {.experts = 2, .timeout = testing::kPatience});
    OneToken one;
    const auto dispatch = [&] { buffer.dispatch(one.plan(buffer), one.input()); };
    if (ranks.rank() == 0) {
      std::atomic<bool> ended = false;
      std::thread other([&] {
        // An interrupt is for the call in progress, so it is repeated until there is one.
        while (!ended) buffer.interrupt();
      });
      EXPECT_THAT(error_of(dispatch), error_with(ErrorCode::faulted, "interrupted while it waited for rank 1"));
      ended = true;
      other.join();
      was_interrupted = true;
    } else {
      while (!was_interrupted) std::this_thread::yield();
      // Rank 0 had sent all of its call before it waited, so this rank's may succeed; the next cannot.
      EXPECT_TRUE(error_of(dispatch) || error_of(dispatch));
    }
    buffer.reset();
    EXPECT_NO_THROW(dispatch());
  });
}

// The others make the call, so the one that cannot must tell them; then all go on.
TEST(FrontEnd, RefusesACallOfItsOwnForArgumentsThatHaveNoType) {
  testing::run_threads(2, [](Bootstrap& ranks) {
    const std::shared_ptr<Bootstrap> shared(&ranks, [](Bootstrap*) {});
    Buffer buffer(shared, {.experts = 2, .timeout = testing::kPatience});
    OneToken one;
    if (ranks.rank() == 0) {
      buffer.refuse_dispatch("x");
    } else {
      EXPECT_THAT(error_of([&] { buffer.dispatch(one.plan(buffer), one.input()); }),
                  error_with(ErrorCode::refused, "rank 0 refused its arguments: x"));
    }
    const Received received = buffer.dispatch(one.plan(buffer), one.input());
    if (ranks.rank() == 0) {
      buffer.refuse_combine("x");
    } else {
      const auto combine = [&] { buffer.combine(received.handle, {.x = received.x.view}); };
      EXPECT_THAT(error_of(combine), error_with(ErrorCode::refused, "rank 0 refused its arguments: x"));
    }
    EXPECT_NO_THROW(buffer.combine(received.handle, {.x = received.x.view}));
  });
}

}  // namespace
}  // namespace heddle
