#include "memory/cuda_memory.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/math.hpp"

namespace heddle {
namespace {

CUmemAllocationProp memory_of(int device, CUmemAllocationHandleType shared_by) {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.requestedHandleTypes = shared_by;
  kind.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return kind;
}

/// Of the host's node that is nearest to the GPU.
CUmemAllocationProp memory_near(int device) {
  int node = -1;
  check_cuda(cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, device), "asking for a GPU's NUMA node");
  CUmemAllocationProp kind = memory_of(device, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  kind.location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = std::max(node, 0)};
  return kind;
}

std::size_t unit_of(const CUmemAllocationProp& kind) {
  std::size_t unit = 0;
  check_driver(cuda_driver().granularity(&unit, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
               "asking for the granularity of memory");
  return unit;
}

CUmemGenericAllocationHandle import_as(void* shared, CUmemAllocationHandleType type) {
  CUmemGenericAllocationHandle handle = 0;
  check_driver(in_turn(cuda_driver().import_handle, &handle, shared, type), "importing a peer's GPU memory");
  return handle;
}

// Takes its steps back if one fails. The order of undoing is that of the names, last first.
struct Range {
  std::size_t length;
  CUdeviceptr first = 0;
  bool is_mapped = false;

  ~Range() {
    if (is_mapped) in_turn(cuda_driver().unmap, first, length);
    if (first != 0) in_turn(cuda_driver().free_range, first, length);
  }
};

}  // namespace

std::size_t CudaPhysical::unit(int device, CUmemAllocationHandleType shared_by) {
  return unit_of(memory_of(device, shared_by));
}
std::size_t CudaPhysical::unit_on_host(int device) { return unit_of(memory_near(device)); }

CudaPhysical CudaPhysical::create(std::size_t bytes, int device, CUmemAllocationHandleType shared_by) {
  return of_kind(bytes, memory_of(device, shared_by), "GPU");
}

CudaPhysical CudaPhysical::create_on_host(std::size_t bytes, int device) {
  return of_kind(bytes, memory_near(device), "pinned host");
}

CudaPhysical CudaPhysical::of_kind(std::size_t bytes, const CUmemAllocationProp& kind, const char* name) {
  const auto length =
      static_cast<std::size_t>(round_up(static_cast<int64_t>(bytes), static_cast<int64_t>(unit_of(kind))));
  CUmemGenericAllocationHandle handle = 0;
  check_driver(in_turn(cuda_driver().create, &handle, length, &kind, 0),
               fmt::format("making {} bytes of {} memory", length, name));
  return {handle, length};
}

CudaPhysical CudaPhysical::import(const Descriptor& descriptor, std::size_t length) {
  auto* shared = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor.number()));
  return {import_as(shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), length};
}

CudaPhysical CudaPhysical::import(const FabricHandle& fabric, std::size_t length) {
  FabricHandle shared = fabric;
  return {import_as(shared.data(), CU_MEM_HANDLE_TYPE_FABRIC), length};
}

CudaPhysical CudaPhysical::of(const Mapping& mapping, std::size_t length) {
  CUmemGenericAllocationHandle handle = 0;
  check_driver(in_turn(cuda_driver().retain_handle, &handle, mapping.get()), "taking another thread's GPU memory");
  return {handle, length};
}

CudaPhysical::~CudaPhysical() {
  if (handle_ != 0) in_turn(cuda_driver().release, handle_);
}

Descriptor CudaPhysical::export_descriptor() const {
  int number = -1;
  check_driver(in_turn(cuda_driver().export_handle, &number, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
               "making a file descriptor of GPU memory");
  return Descriptor(number);
}

FabricHandle CudaPhysical::export_fabric() const {
  FabricHandle fabric{};
  check_driver(in_turn(cuda_driver().export_handle, fabric.data(), handle_, CU_MEM_HANDLE_TYPE_FABRIC, 0),
               "making a fabric handle of GPU memory");
  return fabric;
}

void CudaPhysical::map_at(CUdeviceptr first) const {
  check_driver(in_turn(cuda_driver().map, first, length_, 0, handle_, 0), "mapping GPU memory");
}

Mapping CudaPhysical::map(int device) const {
  const CudaDriver& driver = cuda_driver();
  auto range = std::make_shared<Range>(Range{.length = length_});
  check_driver(in_turn(driver.reserve, &range->first, length_, 0, 0, 0),
               fmt::format("reserving {} bytes of addresses", length_));
  map_at(range->first);
  range->is_mapped = true;
  const CUmemAccessDesc access{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  check_driver(in_turn(driver.set_access, range->first, length_, &access, 1),
               fmt::format("giving GPU {} access to a window", device));
  return {range, reinterpret_cast<std::byte*>(range->first)};
}

}  // namespace heddle
