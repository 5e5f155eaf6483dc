// A rank whose rows do not reach another one, in buffers that mask by deadline (I10): both go on without each other.
#pragma once

#include "support/step_world.hpp"

namespace heddle::testing {

/// What of rank 2's arrives at rank 0 before the deadline.
enum class Arrives {
  nothing,         // of its dispatch
  headers,         // of its dispatch
  some_rows,       // and a row and a half; words only
  dispatch,        // all of its dispatch, nothing of its combine
  some_results,    // and of its combine the headers, and two results and a half; words only
  all
};

/// Three ranks, there and back; where a rank is lost, and again without it. By rank.
std::vector<Trace> play_with_lost_rank(const MakeMachine&, Arrives, const CombineCase&, bool words);

}  // namespace heddle::testing
