// Who is to blame for a fault, and the sentence that says so (I9).
#pragma once

#include <string>

#include "protocol/backend.hpp"

namespace heddle {

struct Verdict {
  int culprit;
  int accuser;  // the rank whose fault cell names it
};

/// Waits for the fault cells of the other ranks, one deadline at most, and names the rank that all survivors name.
Verdict find_culprit(Backend&, const Context&);

std::string describe_fault(const Context&, const Verdict&);

const char* name_of(Kind);

}  // namespace heddle
