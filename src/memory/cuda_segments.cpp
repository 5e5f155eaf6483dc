#include "memory/cuda_segments.hpp"

#include <utility>

#include "base/error.hpp"
#include "memory/cuda_driver.hpp"
#include "memory/cuda_memory.hpp"

namespace heddle {
namespace {

constexpr auto kSharedBy = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

class CudaRange : public SegmentRange {
 public:
  CudaRange(int64_t bytes, int device, std::vector<CUmemAccessDesc> access)
      : bytes_(static_cast<std::size_t>(bytes)), device_(device), access_(std::move(access)) {
    check_driver(in_turn(cuda_driver().reserve, &first_, bytes_, 0, 0, 0),
                 fmt::format("reserving {} bytes of addresses", bytes_));
  }
  // Nothing to be done about errors: the driver may be gone before us.
  ~CudaRange() override {
    for (const Mapped& mapped : mapped_) in_turn(cuda_driver().unmap, mapped.first, mapped.bytes);
    in_turn(cuda_driver().free_range, first_, bytes_);
  }
  CudaRange(const CudaRange&) = delete;

  std::byte* first() const override { return reinterpret_cast<std::byte*>(first_); }

  void map(const Descriptor& segment, int64_t offset, int64_t bytes) override {
    const CudaDevice current(device_);
    const Mapped part{first_ + static_cast<CUdeviceptr>(offset), static_cast<std::size_t>(bytes)};
    CudaPhysical::import(segment, part.bytes).map_at(part.first);
    mapped_.push_back(part);
    check_driver(in_turn(cuda_driver().set_access, part.first, part.bytes, access_.data(), access_.size()),
                 fmt::format("giving {} GPUs access to a segment", access_.size()));
  }

 private:
  struct Mapped {
    CUdeviceptr first;
    std::size_t bytes;
  };

  const std::size_t bytes_;
  const int device_;
  const std::vector<CUmemAccessDesc> access_;
  CUdeviceptr first_ = 0;
  std::vector<Mapped> mapped_;
};

class CudaSegments : public Segments {
 public:
  CudaSegments(int device, const std::vector<int>& readers)
      : device_(device), unit_(static_cast<int64_t>(CudaPhysical::unit(device, kSharedBy))) {
    for (const int reader : readers) {
      access_.push_back({.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = reader},
                         .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    }
  }

  int64_t unit() const override { return unit_; }

  std::shared_ptr<SegmentRange> reserve(int64_t bytes, int) override {
    const CudaDevice current(device_);
    return std::make_shared<CudaRange>(bytes, device_, access_);
  }

  Descriptor make(int64_t bytes) override {
    const CudaDevice current(device_);
    return CudaPhysical::create(static_cast<std::size_t>(bytes), device_, kSharedBy)
        .export_descriptor();
  }

 private:
  const int device_;
  const int64_t unit_;
  std::vector<CUmemAccessDesc> access_;
};

}  // namespace

std::shared_ptr<Segments> cuda_segments(int device, const std::vector<int>& readers) {
  const CudaDevice current(device);
  return std::make_shared<CudaSegments>(device, readers);
}

}  // namespace heddle
