// The memory that this thread's rank works in: the host's, or that of its GPU. Tests make inputs and read results on the host.
#pragma once

#include <heddle/tensor.hpp>

#include <cstddef>
#include <memory>
#include <vector>

namespace heddle {
class Backend;
}

namespace heddle::testing {

/// Makes this thread's memory that of the backend, for its scope.
class RankMemory {
 public:
  explicit RankMemory(Backend& backend);
  ~RankMemory();
  RankMemory(const RankMemory&) = delete;

  Backend& backend() { return backend_; }
  void keep(std::shared_ptr<void> block) { lent_.push_back(std::move(block)); }

 private:
  Backend& backend_;
  std::vector<std::shared_ptr<void>> lent_;
};

/// What a rank is given: the view itself, or a copy on its GPU, strides and all, that lives as long as the RankMemory.
TensorView lend(const TensorView&);

/// The bytes that a view spans, from its first element to its last, on the host.
std::vector<std::byte> fetch(const TensorView&);

}  // namespace heddle::testing
