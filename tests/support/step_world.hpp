// All ranks of a world, a thread each, through the same steps on one kind of machine.
#pragma once

#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <vector>

#include "support/step_cases.hpp"
#include "support/step_rank.hpp"
#include "support/thread_ranks.hpp"

namespace heddle::testing {

class StepWorld {
 public:
  StepWorld(const spec::World& world, MakeMachine make, const MachineOptions& options)
      : world_(world), make_(std::move(make)), options_(options) {}

  /// Runs body(rank, the ranks' group) in a thread a rank; what a rank threw is in its place of the result.
  Errors run(const std::function<void(StepRank&, Bootstrap&)>& body) const {
    return run_threads(world_.ranks, [&](Bootstrap& bootstrap) {
      const Topology topo{.rank = bootstrap.rank(), .world = world_.ranks, .experts = world_.experts};
      const auto machine = make_(bootstrap, options_);
      {
        StepRank rank(*machine, world_, topo, options_);
        bootstrap.barrier("start");
        body(rank, bootstrap);
        bootstrap.barrier("end");  // peers may still store into this rank's window
      }
    });
  }

 private:
  const spec::World& world_;
  MakeMachine make_;
  MachineOptions options_;
};

/// How a rank plays a case.
using Play = std::function<Trace(StepRank&, const StepCase&)>;

/// One case on all ranks; an error of a rank fails the test. By rank.
inline std::vector<Trace> play_all(const StepCase& played, const MakeMachine& make, const Play& way = play) {
  const spec::World world = make_world(played.world);
  std::vector<Trace> traces(static_cast<size_t>(world.ranks));
  const Errors errors = StepWorld(world, make, options_for(world, played)).run([&](StepRank& rank, Bootstrap&) {
    traces[static_cast<size_t>(rank.context().topo.rank)] = way(rank, played);
  });
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank]) ADD_FAILURE() << played.name << ", rank " << rank << ": " << errors[rank]->what();
  }
  return traces;
}

/// Both ways of playing a case leave the same bytes.
inline void expect_same_traces(const StepCase& played, const std::vector<Trace>& wanted, const std::vector<Trace>& seen) {
  for (size_t rank = 0; rank < wanted.size(); ++rank) {
    expect_same(wanted[rank], seen[rank], fmt::format("{}, rank {}", played.name, rank));
  }
}

}  // namespace heddle::testing
