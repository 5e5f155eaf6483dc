// Physical memory of a GPU, or of the host for GPUs, apart from the addresses it is seen at: made here, or shared by a
// peer.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "memory/cuda_driver.hpp"
#include "memory/handover.hpp"
#include "memory/mapping.hpp"

namespace heddle {

using FabricHandle = std::array<std::byte, sizeof(CUmemFabricHandle)>;

/// A reference to the memory; mappings hold their own.
class CudaPhysical {
 public:
  /// `bytes` rounded up to what the device maps. Throws Error{system}.
  static CudaPhysical create(std::size_t bytes, int device, CUmemAllocationHandleType shared_by);
  /// Pinned memory of the host near `device`, for GPUs that share no memory of theirs; shared by descriptor.
  static CudaPhysical create_on_host(std::size_t bytes, int device);
  static CudaPhysical import(const Descriptor&, std::size_t length);
  static CudaPhysical import(const FabricHandle&, std::size_t length);
  /// What is mapped in this process already.
  static CudaPhysical of(const Mapping&, std::size_t length);

  CudaPhysical(CudaPhysical&& other) noexcept : handle_(std::exchange(other.handle_, 0)), length_(other.length_) {}
  ~CudaPhysical();

  /// What sizes and addresses are multiples of.
  static std::size_t unit(int device, CUmemAllocationHandleType shared_by);
  static std::size_t unit_on_host(int device);

  std::size_t length() const { return length_; }
  Descriptor export_descriptor() const;
  FabricHandle export_fabric() const;

  /// New addresses at which `device` reads and writes it. Throws Error{system}, also if that GPU cannot reach it.
  Mapping map(int device) const;
  /// At addresses that were reserved; nobody has access yet.
  void map_at(CUdeviceptr first) const;

 private:
  CudaPhysical(CUmemGenericAllocationHandle handle, std::size_t length) : handle_(handle), length_(length) {}
  static CudaPhysical of_kind(std::size_t bytes, const CUmemAllocationProp&, const char* name);

  CUmemGenericAllocationHandle handle_;
  std::size_t length_;
};

}  // namespace heddle
