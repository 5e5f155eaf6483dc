// Cases that all machines must do alike, and a rank's way through one.
#pragma once

#include <string>
#include <vector>

#include "support/step_rank.hpp"
#include "support/routing.hpp"

namespace heddle::testing {

struct StepCase {
  const char* name;
  WorldOptions world;
  DispatchCase dispatch;
  std::vector<CombineCase> combines{{}};
  int64_t slots = 0;  // of a pair's range; 0: all rows fit in one round
  int rounds = 2;     // the whole path again on the same buffer
  bool tags = false;  // pieces are announced by tags, too
  bool words = false; // rows are self-announcing words where the call allows it
  size_t window_bytes = 0;  // 0: what the rest asks for
};

const std::vector<StepCase>& step_cases();
const StepCase& step_case(const std::string& name);

MachineOptions options_for(const spec::World&, const StepCase&);

/// Everything one rank's steps left, in order.
using Trace = std::vector<Tables>;

/// Throws Error{faulted} if a step ends in a fault.
Trace play(StepRank&, const StepCase&);

/// The same with each call in one go; the case's sizes are fixed.
Trace play_whole(StepRank&, const StepCase&);
/// The same; the first dispatch takes a caller's wide ids.
Trace play_whole_of_wide_ids(StepRank&, const StepCase&);

/// The case with fixed sizes and tags.
StepCase as_whole(StepCase);

/// Low-latency calls, whose rows are words where there are such.
const std::vector<StepCase>& decode_cases();

/// All ranks by one thread: each step is launched for every rank before any is waited for. For tools that let only one
/// launch at a time through; the machines must not wait in their steps.
std::vector<Trace> play_lockstep(std::vector<StepRank*>, const StepCase&);
std::vector<Trace> play_whole_lockstep(std::vector<StepRank*>, const StepCase&);

/// Reports where the two differ.
void expect_same(const Trace& wanted, const Trace& seen, const std::string& where);

}  // namespace heddle::testing
