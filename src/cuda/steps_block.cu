#include "cuda/steps.cuh"

namespace heddle {

HEDDLE_STEPS(block, Block)

}  // namespace heddle
