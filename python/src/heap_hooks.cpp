// What torch's CUDAPluggableAllocator finds by name in this module, whose own libraries show nothing.
#include "memory/heap_hooks.hpp"

extern "C" {

[[gnu::visibility("default")]] void* heddle_torch_malloc(ssize_t bytes, int device, CUstream_st* stream) {
  return heddle_heap_malloc(bytes, device, stream);
}

[[gnu::visibility("default")]] void heddle_torch_free(void* memory, ssize_t bytes, int device, CUstream_st* stream) {
  heddle_heap_free(memory, bytes, device, stream);
}
}
