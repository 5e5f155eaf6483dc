#include "cuda/graph_keep.hpp"

#include <mutex>
#include <utility>
#include <vector>

#include "memory/cuda_driver.hpp"

namespace heddle {
namespace {

using Kept = std::shared_ptr<const void>;

struct Left {
  std::mutex mutex;
  std::vector<Kept> things;
};

/// Never destroyed: a graph may go after all static objects.
Left& left() {
  static Left& of_process = *new Left;
  return of_process;
}

void leave(void* kept) {
  auto* thing = static_cast<Kept*>(kept);
  {
    const std::lock_guard lock(left().mutex);
    left().things.push_back(std::move(*thing));
  }
  delete thing;
}

}  // namespace

void keep_in_graph(CUstream_st* captured, Kept kept) {
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamGetCaptureInfo(captured, &status, &id, &graph), "asking for a stream's graph");
  if (status != cudaStreamCaptureStatusActive) return;
  auto thing = std::make_unique<Kept>(std::move(kept));
  cudaUserObject_t object{};
  check_cuda(cudaUserObjectCreate(&object, thing.get(), leave, 1, cudaUserObjectNoDestructorSync),
             "making an object for a graph to keep");
  thing.release();
  check_cuda(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove), "giving a graph an object to keep");
}

void drop_what_graphs_left() {
  std::vector<Kept> things;  // destroyed without the lock
  const std::lock_guard lock(left().mutex);
  things.swap(left().things);
}

}  // namespace heddle
