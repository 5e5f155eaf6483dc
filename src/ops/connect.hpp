// Finds out how ranks reach one another and makes a buffer's parts.
#pragma once

#include "ops/calls.hpp"

namespace heddle {

/// Collective. On CPUs threads of one process share a heap, processes of one host shared memory. On GPUs see cuda_vmm.hpp.
BufferParts connect(Bootstrap&, const Config&);

}  // namespace heddle
