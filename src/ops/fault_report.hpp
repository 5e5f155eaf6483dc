// Who is to blame for a fault, and the sentence that says so (I9).
#pragma once

#include <string>

#include "protocol/backend.hpp"

namespace heddle {

struct FaultStory {
  FaultCode code;
  std::string text;
};

/// Waits for the fault cells of the other ranks, one deadline at most, and names the rank that all survivors name.
FaultStory tell_fault(Backend&, const Context&);

const char* name_of(Kind);

}  // namespace heddle
