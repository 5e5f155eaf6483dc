#include "memory/cuda_patchwork.hpp"

#include <algorithm>
#include <memory>

#include "base/error.hpp"
#include "base/log.hpp"
#include "bootstrap/packing.hpp"
#include "bootstrap/together.hpp"
#include "memory/cuda_driver.hpp"
#include "memory/cuda_memory.hpp"
#include "memory/handover.hpp"

namespace heddle {
namespace {

constexpr auto kSharedBy = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

std::vector<Patch> patches_for(const CudaWindows& wanted, int ranks, int owner, std::size_t unit) {
  return patches_of(*wanted.layout, ranks, owner, wanted.apart, wanted.bytes, unit);
}

/// Addresses of one window, and the patches mapped there.
class Patchwork {
 public:
  Patchwork(std::size_t bytes, int device) : bytes_(bytes), device_(device) {
    check_driver(in_turn(cuda_driver().reserve, &first_, bytes_, 0, 0, 0),
                 fmt::format("reserving {} bytes of addresses", bytes_));
  }
  // Nothing to be done about errors: the driver may be gone before us.
  ~Patchwork() {
    for (const Patch& patch : mapped_) in_turn(cuda_driver().unmap, first_ + patch.first, patch.bytes);
    in_turn(cuda_driver().free_range, first_, bytes_);
  }
  Patchwork(const Patchwork&) = delete;

  std::byte* first() const { return reinterpret_cast<std::byte*>(first_); }

  void add(const CudaPhysical& memory, const Patch& patch) {
    const CUdeviceptr at = first_ + patch.first;
    memory.map_at(at);
    mapped_.push_back(patch);
    const CUmemAccessDesc access{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_},
                                 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    check_driver(in_turn(cuda_driver().set_access, at, patch.bytes, &access, 1),
                 fmt::format("giving GPU {} access to a part of a window", device_));
  }

 private:
  const std::size_t bytes_;
  const int device_;
  CUdeviceptr first_ = 0;
  std::vector<Patch> mapped_;
};

/// One rank's part in making all windows: its own patches, and of each peer's those that it may reach.
class PatchworkMaker {
 public:
  PatchworkMaker(Bootstrap& bootstrap, const CudaWindows& wanted, std::size_t unit)
      : wanted_(wanted), own_(bootstrap.rank()) {
    for (int rank = 0; rank < bootstrap.size(); ++rank) {
      patches_.push_back(patches_for(wanted, bootstrap.size(), rank, unit));
      most_ = std::max(most_, patches_.back().size());
    }
  }

  void make_own() {
    for (const Patch& patch : patches_[at(own_)]) {
      memory_.push_back(patch.is_pinned ? CudaPhysical::create_on_host(patch.bytes, wanted_.device)
                                        : CudaPhysical::create(patch.bytes, wanted_.device, kSharedBy));
    }
    for (const auto& patches : patches_) {
      windows_.push_back(std::make_shared<Patchwork>(patches.back().first + patches.back().bytes, wanted_.device));
    }
    for (std::size_t i = 0; i < memory_.size(); ++i) windows_[at(own_)]->add(memory_[i], patches_[at(own_)][i]);
    for (const Patch& patch : patches_[at(own_)]) {
      check_cuda(cudaMemset(windows_[at(own_)]->first() + patch.first, 0, patch.bytes), "clearing a window");
    }
    check_cuda(cudaDeviceSynchronize(), "clearing a window");
  }

  /// Ranks have different numbers of patches; who has no more hands its last one over again.
  std::size_t most_patches() const { return most_; }
  Descriptor export_patch(std::size_t i) const { return memory_[std::min(i, memory_.size() - 1)].export_descriptor(); }

  void map_patch(std::size_t i, const std::vector<Descriptor>& descriptors) {
    for (int peer = 0; peer < static_cast<int>(patches_.size()); ++peer) {
      if (peer == own_ || i >= patches_[at(peer)].size()) continue;
      const Patch& patch = patches_[at(peer)][i];
      if (!patch.is_pinned && wanted_.apart.contains(own_, peer)) continue;
      if (!descriptors[at(peer)]) fail(ErrorCode::system, "rank {} is on another host", peer);
      windows_[at(peer)]->add(CudaPhysical::import(descriptors[at(peer)], patch.bytes), patch);
    }
  }

  std::vector<Mapping> windows() const {
    std::vector<Mapping> all;
    for (const auto& window : windows_) all.emplace_back(window, window->first());
    return all;
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  const CudaWindows& wanted_;
  const int own_;
  std::vector<std::vector<Patch>> patches_;  // by owner
  std::size_t most_ = 0;
  std::vector<CudaPhysical> memory_;
  std::vector<std::shared_ptr<Patchwork>> windows_;
};

}  // namespace

RankPairs find_apart(Bootstrap& bootstrap, int device, std::chrono::nanoseconds deadline) {
  const auto mine =
      together(bootstrap, "cuda: make memory to try", [&] { return CudaPhysical::create(1, device, kSharedBy); });
  const auto shared = together(bootstrap, "cuda: share memory to try", [&] { return mine.export_descriptor(); });
  const auto theirs = exchange_descriptors(bootstrap, shared, deadline);
  Packer packer;
  for (std::size_t peer = 0; peer < theirs.size(); ++peer) {
    bool reaches = static_cast<int>(peer) == bootstrap.rank();
    try {
      if (theirs[peer]) CudaPhysical::import(theirs[peer], mine.length()).map(device), reaches = true;
    } catch (const Error& error) {
      log_info("GPU {} does not reach the memory of rank {}: {}", device, peer, error.what());
    }
    packer.put(std::uint64_t{reaches});
  }
  RankPairs apart;
  int rank = 0;
  for (const Bytes& message : bootstrap.all_gather(packer.bytes(), "cuda: who reaches whom")) {
    Unpacker unpacker(message);
    for (int peer = 0; peer < bootstrap.size(); ++peer) {
      if (unpacker.number() == 0) apart.add(rank, peer);
    }
    ++rank;
  }
  return apart;
}

std::vector<Mapping> make_patchwork(Bootstrap& bootstrap, const CudaWindows& wanted,
                                    std::chrono::nanoseconds deadline) {
  const std::size_t unit = together(bootstrap, "cuda: prepare windows in parts", [&] {
    return std::max(CudaPhysical::unit(wanted.device, kSharedBy), CudaPhysical::unit_on_host(wanted.device));
  });
  PatchworkMaker maker(bootstrap, wanted, unit);
  together(bootstrap, "cuda: make own window in parts", [&] { return maker.make_own(), true; });
  for (std::size_t i = 0; i < maker.most_patches(); ++i) {
    const Descriptor mine =
        together(bootstrap, "cuda: share a part of own window", [&] { return maker.export_patch(i); });
    const auto theirs = exchange_descriptors(bootstrap, mine, deadline);
    together(bootstrap, "cuda: map parts of peers' windows", [&] { return maker.map_patch(i, theirs), true; });
  }
  return maker.windows();
}

}  // namespace heddle
