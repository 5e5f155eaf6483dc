// What a framework's pluggable allocator calls (torch.cuda.MemPool takes such functions by name): memory comes from the heap
// that the thread has chosen, so that the framework's own rules of streams and reuse hold for outputs in the heap.
#pragma once

#include <sys/types.h>

#include <memory>

#include "memory/heap_pool.hpp"

struct CUstream_st;

namespace heddle {

/// While it lives, this thread's calls of heddle_heap_malloc take memory of this pool. May be nested.
class HeapOfThread {
 public:
  explicit HeapOfThread(std::shared_ptr<HeapPool>);
  ~HeapOfThread();
  HeapOfThread(const HeapOfThread&) = delete;

 private:
  std::shared_ptr<HeapPool> before_;
};

}  // namespace heddle

extern "C" {

/// Null if the thread has chosen no heap, or it is full. Memory that peers have yet to map is given too: rows for it are
/// staged until they have.
[[gnu::visibility("default")]] void* heddle_heap_malloc(ssize_t bytes, int device, CUstream_st* stream);
/// Any thread. Nothing may use the memory any more.
[[gnu::visibility("default")]] void heddle_heap_free(void* memory, ssize_t bytes, int device, CUstream_st* stream);
}
