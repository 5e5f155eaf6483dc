// What Plan and Handle point to: flat tensors in the backend's memory, never changed once made.
#pragma once

#include <heddle/buffer.hpp>

#include <cstdint>
#include <memory>
#include <vector>

#include "protocol/backend.hpp"

namespace heddle {

/// Keeps the memory of a plan's or a route's tensors.
class Arena {
 public:
  explicit Arena(Backend& backend) : backend_(&backend) {}

  /// `count` elements, zeroed on the CPU only; count 0 is legal.
  template <class T>
  T* take(int64_t count) {
    blocks_.push_back(backend_->take(static_cast<size_t>(count) * sizeof(T)));
    return static_cast<T*>(blocks_.back().get());
  }

 private:
  Backend* backend_;  // outlived by what holds this: only take() uses it
  std::vector<std::shared_ptr<void>> blocks_;
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
