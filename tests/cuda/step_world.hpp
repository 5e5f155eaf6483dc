// All ranks of a world, a thread each, through the same steps on one kind of machine.
#pragma once

#include <barrier>
#include <functional>
#include <vector>

#include "cuda/step_rank.hpp"
#include "support/thread_ranks.hpp"

namespace heddle::testing {

/// Ranks of one GPU must not wait for one another's memory: all allocate, then all launch.
class StepWorld {
 public:
  StepWorld(const spec::World& world, const MachineOptions& options) : world_(world), options_(options) {}

  /// Runs body(rank) in a thread a rank; what a rank threw is in its place of the result.
  Errors run(const std::function<void(StepRank&)>& body) const {
    return run_threads(world_.ranks, [&](Bootstrap& bootstrap) {
      const Topology topo{.rank = bootstrap.rank(), .world = world_.ranks, .experts = world_.experts};
      const auto machine = make_machine(bootstrap, options_);
      {
        StepRank rank(*machine, world_, topo, options_);
        bootstrap.barrier("start");
        body(rank);
        bootstrap.barrier("end");  // peers may still store into this rank's window
      }
    });
  }

 private:
  const spec::World& world_;
  MachineOptions options_;
};

}  // namespace heddle::testing
