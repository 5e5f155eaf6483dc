// Windows between processes: what threads cannot show.
#include "memory/symmetric_memory.hpp"
#include "memory_checks.hpp"
#include "support/errors.hpp"
#include "support/tcp_ranks.hpp"

#include <sys/resource.h>

#include <filesystem>
#include <fstream>

namespace heddle {
namespace {

using namespace std::chrono_literals;
using testing::die_now;
using testing::expect_all_ok;
using testing::kTcpPatience;
using testing::RankOutcome;
using testing::run_tcp_ranks;

constexpr std::size_t kBytes = 100'000;  // not a multiple of the page

void expect_tells(const RankOutcome& rank, const std::vector<std::string>& words) {
  EXPECT_EQ(rank.exit_code, 1) << rank;
  for (const auto& word : words) EXPECT_NE(rank.message.find(word), std::string::npos) << rank << " lacks " << word;
}

class Processes : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, Processes, ::testing::Values(1, 2, 3, 8, 64));

TEST_P(Processes, WriteIntoEveryWindow) {
  expect_all_ok(run_tcp_ranks(GetParam(), [](Bootstrap& bootstrap) {
    const std::size_t descriptors = testing::open_descriptors();
    const SymmetricMemory memory = make_shm(bootstrap, kBytes, kTcpPatience);
    EXPECT_EQ(testing::open_descriptors(), descriptors);  // all closed once mapped
    testing::expect_fresh(memory, bootstrap.size());
    testing::expect_all_to_all(memory, bootstrap);
  }));
}

// The kernel lets a user have no more descriptors on their way than RLIMIT_NOFILE, over all its processes; a rank that
// is held up by it must take before it gives. Root is not held to it, so become somebody else.
TEST(ProcessesCrowd, FewDescriptorsAreEnough) {
  expect_all_ok(run_tcp_ranks(32, [](Bootstrap& bootstrap) {
    ASSERT_TRUE(::geteuid() != 0 || ::setuid(65534) == 0);
    const rlimit few{.rlim_cur = 100, .rlim_max = 100};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    bootstrap.barrier("all have few descriptors");
    const SymmetricMemory memory = make_shm(bootstrap, kBytes, kTcpPatience);
    testing::expect_all_to_all(memory, bootstrap);
  }));
}

TEST(ProcessesLifetime, WindowOutlivesItsOwner) {
  const auto ranks = run_tcp_ranks(2, [](Bootstrap& bootstrap) {
    const SymmetricMemory memory = make_shm(bootstrap, kBytes, kTcpPatience);
    memory.peer(1)[7] = std::byte(bootstrap.rank() == 0 ? 9 : 0);
    bootstrap.barrier();
    if (bootstrap.rank() == 1) die_now();
    EXPECT_ANY_THROW(bootstrap.barrier());  // it is dead
    std::memset(memory.peer(1) + 8, 1, kBytes - 8);
    EXPECT_EQ(memory.peer(1)[kBytes - 1], std::byte{1});
  });
  EXPECT_TRUE(ranks[0].ok()) << ranks[0];
}

std::vector<std::string> names_in(const char* folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (std::string name = entry.path().filename(); name.find("heddle") != std::string::npos) names.push_back(name);
  }
  return names;
}

// What never had a name cannot be left behind.
TEST(ProcessesLifetime, KillLeavesNothingBehind) {
  const auto ranks = run_tcp_ranks(3, [](Bootstrap& bootstrap) {
    const SymmetricMemory memory = make_shm(bootstrap, kBytes, kTcpPatience);
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find(" rw-s ") == std::string::npos) continue;
      EXPECT_NE(line.find("/memfd:heddle (deleted)"), std::string::npos) << line;
    }
    if (::testing::Test::HasFailure()) return;
    bootstrap.barrier();
    die_now();
  });
  for (const auto& rank : ranks) EXPECT_EQ(rank.signal, SIGKILL) << rank;
  EXPECT_EQ(names_in("/dev/shm"), std::vector<std::string>{});
}

TEST(ProcessesFaults, SizeMismatchNamesBoth) {
  const auto ranks = run_tcp_ranks(
      2, [](Bootstrap& bootstrap) { make_shm(bootstrap, bootstrap.rank() == 0 ? 4096 : 8192, kTcpPatience); });
  for (const auto& rank : ranks) expect_tells(rank, {"window bytes is 4096 on ranks 0, 8192 on ranks 1"});
}

TEST(ProcessesFaults, DeadPeerIsNamed) {
  const auto ranks = run_tcp_ranks(3, [](Bootstrap& bootstrap) {
    bootstrap.barrier();
    if (bootstrap.rank() == 1) die_now();
    make_shm(bootstrap, kBytes, kTcpPatience);
  });
  for (const int rank : {0, 2}) expect_tells(ranks[rank], {"rank 1 died or left"});
}

// Memory of the heap is an address, which means nothing in another process.
TEST(ProcessesFaults, HeapIsRefused) {
  const auto ranks = run_tcp_ranks(2, [](Bootstrap& bootstrap) { make_heap(bootstrap, kBytes, kTcpPatience); });
  for (const auto& rank : ranks) expect_tells(rank, {"rank 1 is in another process", "make_shm"});
}

// One machine plays two hosts: ranks 0 and 2 against 1 and 3.
TEST(ProcessesHosts, RanksOfOtherHostsAreFar) {
  expect_all_ok(run_tcp_ranks(4, [](Bootstrap& bootstrap) {
    ::setenv("HEDDLE_HOST_ID", bootstrap.rank() % 2 == 0 ? "even" : "odd", 1);
    const SymmetricMemory memory = make_shm(bootstrap, kBytes, kTcpPatience);
    for (int peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(memory.peer(peer) != nullptr, peer % 2 == bootstrap.rank() % 2) << "peer " << peer;
    }
    memory.peer((bootstrap.rank() + 2) % 4)[0] = std::byte{3};
    bootstrap.barrier();
    EXPECT_EQ(memory.local()[0], std::byte{3});
  }));
}

}  // namespace
}  // namespace heddle
