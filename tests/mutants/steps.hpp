// Which build of the steps the simulation runs.
#pragma once

#include "sim/sim_backend.hpp"

namespace heddle::testing {

/// From now on those of the library at `path`; false: dlerror() says why not.
bool use_steps(const char* path);

}  // namespace heddle::testing
