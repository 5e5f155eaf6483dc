#include "cuda/take_ids.hpp"

#include "protocol/ids.hpp"

namespace heddle {
namespace {

/// All threads of a launch, which never meet.
struct Threads {
  __device__ int index() const { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }
  __device__ int size() const { return static_cast<int>(gridDim.x * blockDim.x); }
  __device__ int lane() const { return 0; }
  __device__ int lanes() const { return 1; }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kIdThreads)
    heddle_take_ids(const __grid_constant__ TableView ids, int experts, int32_t* to, uint64_t* bad) {
  take_ids(Threads{}, ids, experts, to, bad);
}

extern "C" __global__ void __launch_bounds__(kIdThreads) heddle_take_map(const __grid_constant__ TableView map, uint8_t* to) {
  take_map(Threads{}, map, to);
}

const void* take_ids_kernel() { return reinterpret_cast<const void*>(heddle_take_ids); }
const void* take_map_kernel() { return reinterpret_cast<const void*>(heddle_take_map); }

}  // namespace heddle
