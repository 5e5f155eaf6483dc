#include "bootstrap/callable.hpp"

#include "bootstrap/agree.hpp"
#include "support/errors.hpp"
#include "support/thread_ranks.hpp"

namespace heddle {
namespace {

using testing::error_of;
using testing::error_with;
using testing::NoneFailed;
using testing::run_threads;

// What a user brings: here another group's all-gather.
AllGather borrowed(Bootstrap& group) {
  return [&group](Bytes mine) { return group.all_gather(mine); };
}

TEST(Callable, GathersThroughTheUsersFunction) {
  const auto errors = run_threads(3, [](Bootstrap& group) {
    const auto bootstrap = callable(group.rank(), group.size(), borrowed(group));
    const auto all = bootstrap->all_gather(Bytes(group.rank(), std::byte{7}));
    for (int peer = 0; peer < group.size(); ++peer) EXPECT_EQ(all[peer], Bytes(peer, std::byte{7}));
    bootstrap->barrier();
    agree(*bootstrap, std::vector<Setting>{{"bytes", "1"}});
  });
  EXPECT_THAT(errors, NoneFailed());
}

TEST(Callable, DifferentCallsAreAMismatch) {
  const auto errors = run_threads(2, [](Bootstrap& group) {
    callable(group.rank(), 2, borrowed(group))->barrier(group.rank() == 0 ? "sizes" : "handles");
  });
  EXPECT_THAT(errors[0], error_with(ErrorCode::mismatch, "rank 0 calls 'sizes' while rank 1 calls 'handles'"));
  EXPECT_THAT(errors[1], error_with(ErrorCode::mismatch, "rank 1 calls 'handles' while rank 0 calls 'sizes'"));
}

// A communicator of another size than was said, e.g. one node's instead of the world's.
TEST(Callable, WrongNumberOfEntriesIsRefused) {
  const auto too_few = callable(0, 2, [](Bytes mine) { return std::vector<Bytes>{mine}; });
  EXPECT_THAT(error_of([&] { too_few->all_gather({}, "plan"); }),
              error_with(ErrorCode::mismatch, "plan", "1 entries to rank 0", "2 ranks"));
}

// A communicator that numbers its ranks otherwise.
TEST(Callable, WrongOrderIsRefused) {
  const auto errors = run_threads(2, [](Bootstrap& group) {
    const auto bootstrap = callable(1 - group.rank(), 2, borrowed(group));
    bootstrap->all_gather(Bytes(group.rank(), std::byte{1}), "plan");
  });
  for (const auto& error : errors) EXPECT_THAT(error, error_with(ErrorCode::mismatch, "plan", "order of ranks"));
}

TEST(Callable, RubbishOfAPeerIsRefused) {
  const auto rubbish = callable(0, 2, [](Bytes mine) { return std::vector<Bytes>{mine, Bytes(5)}; });
  EXPECT_THAT(error_of([&] { rubbish->barrier(); }), error_with(ErrorCode::mismatch, "are left"));
}

TEST(Callable, ItsExceptionsPassAndBreakTheGroup) {
  const auto broken = callable(0, 1, [](Bytes) -> std::vector<Bytes> { throw std::runtime_error("no route"); });
  EXPECT_THROW(broken->barrier(), std::runtime_error);
  EXPECT_THAT(error_of([&] { broken->barrier(); }), error_with(ErrorCode::faulted, "no route"));
}

TEST(Callable, ArgumentsAreChecked) {
  const AllGather nothing = [](Bytes) { return std::vector<Bytes>{}; };
  EXPECT_THAT(error_of([&] { callable(0, 0, nothing); }), error_with(ErrorCode::usage, "size is 0"));
  EXPECT_THAT(error_of([&] { callable(2, 2, nothing); }), error_with(ErrorCode::usage, "rank is 2", "0 to 1"));
  EXPECT_THAT(error_of([&] { callable(0, 1, nullptr); }), error_with(ErrorCode::usage, "empty"));
}

}  // namespace
}  // namespace heddle
