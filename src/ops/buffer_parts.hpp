// What a buffer is made of.
#pragma once

#include <heddle/buffer.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/backend.hpp"

namespace heddle {

/// Memory of the symmetric heap for a dispatch's rows (I14).
struct HeapBlock {
  std::shared_ptr<void> memory;
  int64_t offset = 0;
};

/// Tests put their own ports, clocks and heaps in here.
struct BufferParts {
  Topology topo;
  Config config;
  std::unique_ptr<Backend> backend;
  std::shared_ptr<void> memory;  // the windows; kept as long as the backend
  int64_t window_bytes = 0;
  std::string windows;           // how peers reach them
  std::vector<std::string> paths;  // how each of them does
  bool sms_are_automatic = false;  // config.num_sms is what there is, and a call takes what it needs of them
  bool in_place = false;
  bool words = false;  // windows have self-announcing words, for low latency
  std::function<std::optional<HeapBlock>(int64_t bytes)> heap;  // with in_place: nothing = staged
  std::function<std::optional<int64_t>(const void*, int64_t bytes)> heap_offset;  // of memory that an allocator took there
  std::shared_ptr<class HeapPool> heap_pool;
};

}  // namespace heddle
