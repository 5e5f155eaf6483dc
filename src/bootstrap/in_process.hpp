// Ranks that are threads of one process.
#pragma once

#include "bootstrap/bootstrap.hpp"

#include <chrono>
#include <memory>

namespace heddle {

/// One Bootstrap per rank, 1 to kMaxRanks of them; each goes to its own thread. A rank that destroys its object leaves
/// the group: peers that then wait for it fail at once.
std::vector<std::unique_ptr<Bootstrap>> in_process(int size, std::chrono::nanoseconds deadline);

}  // namespace heddle
