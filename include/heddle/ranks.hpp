// Ways for ranks to find one another.
#pragma once

#include <heddle/bootstrap.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace heddle {

/// One Bootstrap per rank, 1 to kMaxRanks of them; each goes to its own thread.
std::vector<std::unique_ptr<Bootstrap>> in_process(int size, std::chrono::nanoseconds deadline);

}  // namespace heddle
