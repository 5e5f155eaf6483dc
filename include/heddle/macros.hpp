// The few words that let one text compile for the host and for a GPU.
#pragma once

#ifdef __CUDACC__
#define HEDDLE_HD __host__ __device__
#define HEDDLE_DEVICE __device__
#else
#define HEDDLE_HD
#define HEDDLE_DEVICE
#endif

// True in the pass of nvcc that makes device code; the host twin is the other branch.
#ifdef __CUDA_ARCH__
#define HEDDLE_ON_DEVICE 1
#else
#define HEDDLE_ON_DEVICE 0
#endif
