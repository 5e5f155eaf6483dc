// Finds out how ranks reach one another and makes a buffer's parts.
#pragma once

#include "ops/calls.hpp"

namespace heddle {

/// Collective. Threads of one process share a heap, processes of one host shared memory.
BufferParts connect(Bootstrap&, const Config&);

}  // namespace heddle
