// What Plan and Handle point to: flat tensors in the backend's memory, never changed once made.
#pragma once

#include <heddle/buffer.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "protocol/backend.hpp"

namespace heddle {

/// Keeps the memory of a plan's or a route's tensors. On a GPU, where a block costs the host more than its bytes, small ones
/// are cut from a larger one; elsewhere each is its own, so that sanitizers see who writes past its end.
class Arena {
 public:
  explicit Arena(Backend& backend) : backend_(&backend), cuts_(backend.is_asynchronous()) {}

  /// `count` elements, zeroed on the CPU only; count 0 is legal.
  template <class T>
  T* take(int64_t count) {
    return static_cast<T*>(take_bytes(static_cast<size_t>(count) * sizeof(T)));
  }

 private:
  static constexpr size_t kAlign = 256;
  static constexpr size_t kChunk = 16384;

  void* take_bytes(size_t bytes) {
    const size_t rounded = (bytes + kAlign - 1) / kAlign * kAlign;
    if (!cuts_ || rounded > kChunk / 2) return take_block(bytes);
    if (rounded > left_) {
      next_ = static_cast<std::byte*>(take_block(kChunk));
      left_ = kChunk;
    }
    left_ -= rounded;
    return std::exchange(next_, next_ + rounded);
  }

  void* take_block(size_t bytes) {
    blocks_.push_back(backend_->take(bytes));
    return blocks_.back().get();
  }

  Backend* backend_;  // outlived by what holds this: only take() uses it
  bool cuts_;
  std::vector<std::shared_ptr<void>> blocks_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

struct PlanData {
  explicit PlanData(Backend& backend) : arena(backend), device(backend.device()) {}

  Arena arena;
  Device device;
  Topology topo;
  PlanView view;
  bool has_ids = false;
  uint64_t buffer = 0;  // id of the buffer that made it
  IdCheck ids;
};

struct PlanAccess {
  static const std::shared_ptr<const PlanData>& data(const Plan& plan) { return plan.data_; }
  static Plan make(std::shared_ptr<const PlanData> data) {
    Plan plan;
    plan.data_ = std::move(data);
    return plan;
  }
};

/// The receiver's side of one dispatch.
struct Route {
  explicit Route(Backend& backend) : arena(backend) {}

  Arena arena;
  std::shared_ptr<const PlanData> plan;
  RouteView view;
  Layout layout = Layout::token_major;
  int64_t rows = 0;      // of the dispatch's output
  int64_t num_received = 0;
  int32_t max_tokens = 0;
  int32_t alignment = 1;
  bool fixed_size = false;
  bool has_weights = false;
  uint64_t buffer = 0;
  uint64_t incarnation = 0;
};

}  // namespace heddle
