// Curves: operations by SMs, tokens, routing, options and places of memory.
#pragma once

namespace heddle::bench {

/// curves OUT.json [SECTION]...; all sections if none is named (cuda_setups.hpp).
int run_curves(int argc, char** argv);

}  // namespace heddle::bench
