// Waits end (I9): a rank that does not come is named, the GPU stays usable, reset() repairs the buffer. On both machines alike.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "cuda/gpu_machine.hpp"
#include "support/step_world.hpp"
#include "support/routing.hpp"

namespace heddle::testing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTimeout{400};

WorldOptions small_world(int ranks) {
  return {.routing = Routing::uniform, .ranks = ranks, .tokens = 16, .topk = 2, .experts = 8, .hidden = 64};
}

constexpr MachineOptions kImpatient{.window_bytes = size_t{1} << 20, .timeout = kTimeout};

bool round_trip(StepRank& rank, const DispatchCase& dispatch = {.max_tokens = 16}) {
  return rank.send_dispatch(dispatch) && rank.read_headers() && rank.receive_dispatch() && rank.send_combine({}, 1) &&
         rank.receive_combine();
}

void expect_no_errors(const Errors& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    EXPECT_FALSE(errors[rank]) << "rank " << rank << ": " << errors[rank]->what();
  }
}

bool reset_all(StepRank& rank) {
  RankSet members, missing;
  for (int peer = 0; peer < rank.context().topo.world; ++peer) members.add(peer);
  rank.machine().backend().drain();
  return rank.machine().backend().reset(rank.context(), members, missing);
}

class Faults : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) HEDDLE_NEEDS_GPU();
  }
  static MakeMachine machines() { return GetParam() ? gpu_machines() : MakeMachine(make_cpu_machine); }
};

// Rank 1 makes its first call, then sleeps through the second. Rank 0 must not wait for ever, must say for whom it waited,
// and after a reset both go on.
TEST_P(Faults, APeerThatDoesNotComeIsNamed) {
  const spec::World world = make_world(small_world(2));
  const StepWorld ranks(world, machines(), kImpatient);
  std::barrier<> met(2);
  expect_no_errors(ranks.run([&](StepRank& rank, Bootstrap&) {
    const int own = rank.context().topo.rank;
    rank.plan();
    EXPECT_TRUE(round_trip(rank)) << own;
    met.arrive_and_wait();
    if (own == 0) {
      const auto started = std::chrono::steady_clock::now();
      EXPECT_FALSE(round_trip(rank));
      const auto waited = std::chrono::steady_clock::now() - started;
      EXPECT_GE(waited, kTimeout);
      EXPECT_LT(waited, 10 * kTimeout);
      const Fault fault = rank.ledger().fault;
      EXPECT_EQ(fault.code, FaultCode::timeout);
      EXPECT_EQ(fault.awaited, Awaited::header);
      EXPECT_EQ(fault.peer, 1);
      EXPECT_EQ(fault.seq, 3u);
      rank.machine().backend().publish_fault(rank.context());
    }
    met.arrive_and_wait();
    if (own == 1) {
      const Cells& cells = cells_of(rank.machine().backend().window(), rank.context(), 0);
      EXPECT_EQ(cells.faults, 1u);
      EXPECT_EQ(cells.fault.awaited, 1);
    }
    EXPECT_TRUE(reset_all(rank)) << own;
    EXPECT_EQ(rank.ledger().incarnation, 1u);
    EXPECT_TRUE(round_trip(rank)) << own;
  }));
}

TEST_P(Faults, AnotherAlignmentIsAMismatchOnBothRanks) {
  const spec::World world = make_world(small_world(2));
  const StepWorld ranks(world, machines(), kImpatient);
  expect_no_errors(ranks.run([&](StepRank& rank, Bootstrap&) {
    rank.plan();
    const int own = rank.context().topo.rank;
    EXPECT_FALSE(round_trip(rank, {.layout = Layout::expert_major, .alignment = own == 0 ? 8 : 16, .max_tokens = 16}));
    const Fault fault = rank.ledger().fault;
    EXPECT_EQ(fault.code, FaultCode::mismatch) << own;
    EXPECT_EQ(fault.peer, 1 - own);
  }));
}

// A mask closes the pair both ways: rank 1 learns of it from its own wait.
TEST_P(Faults, AMaskedPairIsLeftOut) {
  const spec::World world = make_world(small_world(3));
  const StepWorld ranks(world, machines(), kImpatient);
  expect_no_errors(ranks.run([&](StepRank& rank, Bootstrap&) {
    const int own = rank.context().topo.rank;
    rank.plan();
    if (own == 0) rank.machine().backend().close_pair(rank.context(), 1);
    EXPECT_TRUE(rank.send_dispatch({.max_tokens = 16}) && rank.read_headers() && rank.receive_dispatch()) << own;
    const TableBytes status = rank.dispatched().at("status");
    EXPECT_EQ(status, own == 0 ? TableBytes({0, 1, 0}) : own == 1 ? TableBytes({1, 0, 0}) : TableBytes({0, 0, 0}));
  }));
}

// Nothing of a fault may stay in the device: a new buffer works at once.
TEST_P(Faults, AnotherBufferGoesOn) {
  const spec::World world = make_world(small_world(2));
  const StepWorld ranks(world, machines(), kImpatient);
  expect_no_errors(ranks.run([&](StepRank& rank, Bootstrap&) {
    rank.plan();
    if (rank.context().topo.rank == 0) {
      EXPECT_FALSE(round_trip(rank));
    }
  }));
  expect_no_errors(StepWorld(world, machines(), kImpatient).run([&](StepRank& rank, Bootstrap&) {
    rank.plan();
    EXPECT_TRUE(round_trip(rank));
  }));
}

INSTANTIATE_TEST_SUITE_P(On, Faults, ::testing::Bool(), [](const auto& tested) { return tested.param ? "Gpu" : "Cpu"; });

}  // namespace
}  // namespace heddle::testing
