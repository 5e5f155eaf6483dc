// For which GPUs this library has code.
#pragma once

#include <string>

namespace heddle {

/// Why this library's kernels do not run on a GPU: it has none for it. Empty: they run.
std::string architecture_problem(int device);

}  // namespace heddle
