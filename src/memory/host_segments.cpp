#include <sys/mman.h>

#include "base/error.hpp"
#include "memory/mapping.hpp"
#include "memory/memfd.hpp"
#include "memory/segments.hpp"

namespace heddle {
namespace {

class HostRange : public SegmentRange {
 public:
  HostRange(int64_t bytes, int owner) : bytes_(static_cast<std::size_t>(bytes)), owner_(owner) {
    void* first = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (first == MAP_FAILED) fail(ErrorCode::system, "reserving {} bytes of addresses: {}", bytes_, errno_text());
    first_ = static_cast<std::byte*>(first);
  }
  ~HostRange() override { ::munmap(first_, bytes_); }
  HostRange(const HostRange&) = delete;

  std::byte* first() const override { return first_; }

  void map(const Descriptor& segment, int64_t offset, int64_t bytes) override {
    check_sealed_memory(segment, static_cast<std::size_t>(bytes), owner_);
    const int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
    void* at = ::mmap(first_ + offset, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, flags, segment.number(), 0);
    if (at == MAP_FAILED) fail(ErrorCode::system, "mapping a segment of {} bytes: {}", bytes, errno_text());
  }

 private:
  const std::size_t bytes_;
  const int owner_;
  std::byte* first_;
};

class HostSegments : public Segments {
 public:
  int64_t unit() const override { return static_cast<int64_t>(page_bytes()); }
  std::shared_ptr<SegmentRange> reserve(int64_t bytes, int owner) override {
    return std::make_shared<HostRange>(bytes, owner);
  }
  Descriptor make(int64_t bytes) override { return make_sealed_memory(static_cast<std::size_t>(bytes)); }
};

}  // namespace

std::shared_ptr<Segments> host_segments() { return std::make_shared<HostSegments>(); }

}  // namespace heddle
