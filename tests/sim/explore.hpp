// Every state that a program can reach: depth first, each path played anew from the start, paths merged where all that the
// future depends on is the same.
#pragma once

#include <cstdint>
#include <string>

#include "sim/program.hpp"

namespace heddle::testing {

struct Exploration {
  uint64_t states = 0;
  uint64_t transitions = 0;
  uint64_t ends = 0;     // states in which all ranks have ended
  bool complete = false; // false: `max_states` were not enough, or a path failed
  std::string failure;   // the first path that did not end well, with its choices
};

Exploration explore(const Program&, uint64_t max_states);

}  // namespace heddle::testing
