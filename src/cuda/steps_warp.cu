#include "cuda/steps.cuh"

namespace heddle {

HEDDLE_STEPS(warp, Warp)

}  // namespace heddle
