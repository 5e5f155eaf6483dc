#include "memory/heap_hooks.hpp"

#include <map>
#include <mutex>
#include <utility>

#include "base/log.hpp"

namespace heddle {
namespace {

thread_local std::shared_ptr<HeapPool> heap_of_thread;

/// Blocks that a framework holds, by their first byte.
class Held {
 public:
  void add(std::shared_ptr<void> block) {
    void* first = block.get();
    const std::lock_guard lock(mutex_);
    blocks_[first] = std::move(block);
  }

  /// False if it is none of ours.
  bool drop(void* first) {
    std::shared_ptr<void> block;  // given back after the lock
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(first);
    if (found == blocks_.end()) return false;
    block = std::move(found->second);
    blocks_.erase(found);
    return true;
  }

 private:
  std::mutex mutex_;
  std::map<void*, std::shared_ptr<void>> blocks_;
};

/// Never destroyed: frameworks free memory while the process ends.
Held& held() {
  static Held& of_process = *new Held;
  return of_process;
}

}  // namespace

HeapOfThread::HeapOfThread(std::shared_ptr<HeapPool> pool) : before_(std::exchange(heap_of_thread, std::move(pool))) {}
HeapOfThread::~HeapOfThread() { heap_of_thread = std::move(before_); }

}  // namespace heddle

void* heddle_heap_malloc(ssize_t bytes, int, CUstream_st*) {
  using namespace heddle;
  if (heap_of_thread == nullptr || bytes < 0) return nullptr;
  try {
    auto block = heap_of_thread->take(bytes, HeapPool::Reach::nobody_yet);
    if (!block) return nullptr;
    void* memory = block->memory.get();
    held().add(std::move(block->memory));
    return memory;
  } catch (const std::exception& error) {
    log_warn("no memory of the heap: {}", error.what());
    return nullptr;
  }
}

void heddle_heap_free(void* memory, ssize_t bytes, int, CUstream_st*) {
  if (memory == nullptr || heddle::held().drop(memory)) return;
  heddle::log_warn("heddle_heap_free: {} bytes at {} are not of a heap", bytes, memory);
}
