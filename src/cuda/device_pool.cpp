#include "cuda/device_pool.hpp"

#include <array>
#include <bit>
#include <mutex>
#include <vector>

#include "memory/cuda_memory.hpp"

namespace heddle {
namespace {

/// Mapping memory is no part of any graph, also while one is being captured.
struct Uncaptured {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  Uncaptured() { cudaThreadExchangeStreamCaptureMode(&mode); }
  ~Uncaptured() { cudaThreadExchangeStreamCaptureMode(&mode); }
};

}  // namespace

class DevicePool::Slabs {
 public:
  explicit Slabs(int device) : device_(device) {}

  void* take(size_t bytes, int size_class) {
    const std::lock_guard lock(mutex_);
    auto& free = free_[static_cast<size_t>(size_class)];
    if (free.empty()) return carve(bytes);
    void* block = free.back();
    free.pop_back();
    return block;
  }

  void give(void* block, int size_class) {
    const std::lock_guard lock(mutex_);
    free_[static_cast<size_t>(size_class)].push_back(block);
  }

  size_t mapped() const {
    const std::lock_guard lock(mutex_);
    return mapped_;
  }

 private:
  static constexpr size_t kSlabBytes = size_t{16} << 20;

  void* carve(size_t bytes) {
    if (bytes > left_) grow(bytes);
    std::byte* block = next_;
    next_ += bytes;
    left_ -= bytes;
    return block;
  }

  void grow(size_t bytes) {
    const Uncaptured uncaptured;
    const auto memory =
        CudaPhysical::create(bytes > kSlabBytes ? bytes : kSlabBytes, device_, CU_MEM_HANDLE_TYPE_NONE);
    slabs_.push_back(memory.map(device_));
    next_ = slabs_.back().get();
    left_ = memory.length();
    mapped_ += memory.length();
  }

  const int device_;
  mutable std::mutex mutex_;
  std::vector<Mapping> slabs_;
  std::array<std::vector<void*>, 64> free_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
  size_t mapped_ = 0;
};

DevicePool::DevicePool(int device) : slabs_(std::make_shared<Slabs>(device)) {}
DevicePool::~DevicePool() = default;

std::shared_ptr<void> DevicePool::take(size_t bytes) {
  constexpr size_t kLeast = 256;
  const size_t rounded = std::bit_ceil(bytes < kLeast ? kLeast : bytes);
  const int size_class = std::countr_zero(rounded);
  return {slabs_->take(rounded, size_class),
          [slabs = slabs_, size_class](void* block) { slabs->give(block, size_class); }};
}

size_t DevicePool::mapped() const { return slabs_->mapped(); }

}  // namespace heddle
