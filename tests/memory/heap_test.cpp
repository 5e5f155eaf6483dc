#include "bootstrap/in_process.hpp"
#include "memory/symmetric_memory.hpp"
#include "memory_checks.hpp"
#include "support/errors.hpp"
#include "support/thread_ranks.hpp"

namespace heddle {
namespace {

using namespace std::chrono_literals;
using testing::error_with;
using testing::kPatience;
using testing::NoneFailed;
using testing::run_threads;

constexpr std::size_t kBytes = 100'000;  // not a multiple of the page

class Heap : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, Heap, ::testing::Values(1, 2, 3, 8, 64));

TEST_P(Heap, EveryRankWritesIntoEveryWindow) {
  const auto errors = run_threads(GetParam(), [](Bootstrap& bootstrap) {
    const SymmetricMemory memory = make_heap(bootstrap, kBytes, kPatience);
    testing::expect_fresh(memory, bootstrap.size());
    testing::expect_all_to_all(memory, bootstrap);
  });
  EXPECT_THAT(errors, NoneFailed());
}

// Destroying is local: a peer that still writes into the window must not meet an unmapped page.
TEST(HeapLifetime, WindowOutlivesItsOwnersObject) {
  const auto errors = run_threads(2, [](Bootstrap& bootstrap) {
    auto memory = std::make_unique<SymmetricMemory>(make_heap(bootstrap, kBytes, kPatience));
    if (bootstrap.rank() == 0) memory.reset();
    bootstrap.barrier();
    if (bootstrap.rank() == 1) std::memset(memory->peer(0), 1, kBytes);
  });
  EXPECT_THAT(errors, NoneFailed());
}

TEST(HeapFaults, SizeMismatchNamesBoth) {
  const auto errors = run_threads(
      2, [](Bootstrap& bootstrap) { make_heap(bootstrap, bootstrap.rank() == 0 ? 4096 : 8192, kPatience); });
  for (const auto& error : errors) {
    EXPECT_THAT(error, error_with(ErrorCode::mismatch, "window bytes is 4096 on ranks 0, 8192 on ranks 1"));
  }
}

TEST(HeapFaults, EmptyWindowIsRefusedByAll) {
  const auto errors = run_threads(2, [](Bootstrap& bootstrap) { make_heap(bootstrap, 0, kPatience); });
  for (const auto& error : errors) EXPECT_THAT(error, error_with(ErrorCode::usage, "bytes is 0"));
}

TEST(HeapFaults, MissingRankIsNamed) {
  auto ranks = in_process(2, 50ms);
  EXPECT_THAT(testing::error_of([&] { make_heap(*ranks[0], kBytes, 50ms); }),
              error_with(ErrorCode::timeout, "ranks 1"));
}

// A reset maps again over a bootstrap of its members, which numbers them from 0; the buffer's numbers stay.
TEST(HeapMembers, KeepTheirNumbers) {
  const auto errors = run_threads(2, [](Bootstrap& bootstrap) {
    const int members[] = {1, 4};
    const SymmetricMemory memory = make_heap(bootstrap, kBytes, kPatience, members);
    EXPECT_EQ(memory.rank(), members[bootstrap.rank()]);
    EXPECT_EQ(memory.local(), memory.peer(memory.rank()));
    EXPECT_EQ(memory.view().count, 5);
    for (const int left_out : {0, 2, 3, 5, -1}) EXPECT_EQ(memory.peer(left_out), nullptr);
    memory.peer(1)[bootstrap.rank()] = std::byte{7};
    bootstrap.barrier();
    EXPECT_EQ(memory.peer(1)[1 - bootstrap.rank()], std::byte{7});
  });
  EXPECT_THAT(errors, NoneFailed());
}

TEST(HeapMembers, WrongListsAreRefusedByAll) {
  const std::vector<std::vector<int>> wrong = {{0}, {1, 1}, {2, 1}, {-1, 0}, {0, kMaxRanks}};
  for (const auto& members : wrong) {
    const auto errors = run_threads(2, [&](Bootstrap& bootstrap) { make_heap(bootstrap, kBytes, kPatience, members); });
    for (const auto& error : errors) EXPECT_THAT(error, error_with(ErrorCode::usage, "members"));
  }
}

TEST(HeapCycles, MappingsReturnToTheirNumber) {
  constexpr std::size_t kLarge = std::size_t{64} << 20;
  testing::expect_nothing_left(
      kLarge, [] { run_threads(3, [](Bootstrap& bootstrap) { make_heap(bootstrap, kLarge, kPatience); }); });
}

TEST(Local, IsAWorldOfOne) {
  const SymmetricMemory memory = make_local(kBytes);
  testing::expect_fresh(memory, 1);
  EXPECT_EQ(memory.rank(), 0);
  EXPECT_THAT(testing::error_of([] { make_local(0); }), error_with(ErrorCode::usage, "bytes is 0"));
}

}  // namespace
}  // namespace heddle
