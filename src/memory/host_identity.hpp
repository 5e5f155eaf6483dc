// Which ranks share a host's memory.
#pragma once

#include <string>

namespace heddle {

/// Equal for processes that can hand descriptors to one another: one boot of one kernel, one network namespace.
/// HEDDLE_HOST_ID in the environment takes its place, so that one machine can play several hosts.
std::string host_identity();

}  // namespace heddle
