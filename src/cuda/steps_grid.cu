#include "cuda/steps.cuh"

namespace heddle {

HEDDLE_STEPS(grid, Grid)

}  // namespace heddle
