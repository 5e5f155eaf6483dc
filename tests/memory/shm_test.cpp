#include "bootstrap/in_process.hpp"
#include "memory/host_identity.hpp"
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

class Shm : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, Shm, ::testing::Values(1, 2, 3, 8));

TEST_P(Shm, ThreadsWriteIntoEveryWindow) {
  const auto errors = run_threads(GetParam(), [](Bootstrap& bootstrap) {
    const SymmetricMemory memory = make_shm(bootstrap, kBytes, kPatience);
    testing::expect_fresh(memory, bootstrap.size());
    testing::expect_all_to_all(memory, bootstrap);
  });
  EXPECT_THAT(errors, NoneFailed());
}

TEST(ShmLifetime, WindowOutlivesItsOwnersObject) {
  const auto errors = run_threads(2, [](Bootstrap& bootstrap) {
    auto memory = std::make_unique<SymmetricMemory>(make_shm(bootstrap, kBytes, kPatience));
    if (bootstrap.rank() == 0) memory.reset();
    bootstrap.barrier();
    if (bootstrap.rank() == 1) std::memset(memory->peer(0), 1, kBytes);
  });
  EXPECT_THAT(errors, NoneFailed());
}

// Sizes that round to the same pages differ too: offsets are computed from the bytes.
TEST(ShmFaults, SizeMismatchNamesBoth) {
  const auto errors =
      run_threads(2, [](Bootstrap& bootstrap) { make_shm(bootstrap, bootstrap.rank() == 0 ? 4000 : 4001, kPatience); });
  for (const auto& error : errors) {
    EXPECT_THAT(error, error_with(ErrorCode::mismatch, "window bytes is 4000 on ranks 0, 4001 on ranks 1"));
  }
}

TEST(ShmFaults, KindMismatchNamesBoth) {
  const auto errors = run_threads(2, [](Bootstrap& bootstrap) {
    bootstrap.rank() == 0 ? make_shm(bootstrap, kBytes, kPatience) : make_heap(bootstrap, kBytes, kPatience);
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error, error_with(ErrorCode::mismatch, "memory kind is shm on ranks 0, heap on ranks 1"));
  }
}

// One rank cannot have its memory; nobody is left waiting for it.
TEST(ShmFaults, ImpossibleSizeFailsOnAllRanks) {
  const auto errors =
      run_threads(3, [](Bootstrap& bootstrap) { make_shm(bootstrap, std::size_t{1} << 62, kPatience); });
  for (const auto& error : errors) EXPECT_THAT(error, error_with(ErrorCode::system, "rank 0", "4611686018427387904"));
}

TEST(ShmMembers, KeepTheirNumbers) {
  const auto errors = run_threads(2, [](Bootstrap& bootstrap) {
    const int members[] = {1, 4};
    const SymmetricMemory memory = make_shm(bootstrap, kBytes, kPatience, members);
    EXPECT_EQ(memory.local(), memory.peer(members[bootstrap.rank()]));
    for (const int left_out : {0, 2, 3, 5, -1}) EXPECT_EQ(memory.peer(left_out), nullptr);
  });
  EXPECT_THAT(errors, NoneFailed());
}

TEST(ShmCycles, DescriptorsAndMappingsReturnToTheirNumber) {
  constexpr std::size_t kLarge = std::size_t{64} << 20;
  testing::expect_nothing_left(
      kLarge, [] { run_threads(3, [](Bootstrap& bootstrap) { make_shm(bootstrap, kLarge, kPatience); }); });
}

TEST(HostIdentity, IsTheSameEverywhereOnThisHost) { EXPECT_EQ(host_identity(), host_identity()); }

}  // namespace
}  // namespace heddle
