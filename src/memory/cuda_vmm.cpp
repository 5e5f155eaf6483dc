#include "memory/cuda_vmm.hpp"

#include <functional>
#include <optional>

#include "base/error.hpp"
#include "base/log.hpp"
#include "bootstrap/packing.hpp"
#include "bootstrap/together.hpp"
#include "memory/cuda_driver.hpp"
#include "memory/cuda_memory.hpp"
#include "memory/cuda_patchwork.hpp"
#include "memory/cuda_pinned.hpp"
#include "memory/handover.hpp"
#include "memory/host_identity.hpp"
#include "memory/membership.hpp"
#include "memory/window_offers.hpp"

namespace heddle {
namespace {

using Windows = std::vector<Mapping>;

/// What a rank tells the others of its window.
struct Exhibit {
  std::string host;
  std::string process;
  std::uint64_t offer = 0;
  std::uint64_t length = 0;
  Bytes fabric;

  Bytes pack() const { return Packer().put(host).put(process).put(offer).put(length).put(fabric).bytes(); }
  static Exhibit unpack(const Bytes& message) {
    Unpacker unpacker(message);
    Exhibit exhibit;
    exhibit.host = unpacker.text();
    exhibit.process = unpacker.text();
    exhibit.offer = unpacker.number();
    exhibit.length = unpacker.number();
    exhibit.fabric = unpacker.blob();
    return exhibit;
  }
};

/// Tries to map all windows one way. Its steps fail on all ranks or on none, and then say why.
class Attempt {
 public:
  Attempt(Bootstrap& bootstrap, const CudaWindows& wanted, std::chrono::nanoseconds deadline)
      : bootstrap_(bootstrap), wanted_(wanted), deadline_(deadline) {}

  Windows run(CudaPath path) {
    if (path == CudaPath::pinned) return make_pinned_windows(bootstrap_, wanted_, deadline_);
    if (path == CudaPath::mixed) return make_patchwork(bootstrap_, wanted_, deadline_);
    const bool by_fabric = path == CudaPath::fabric;
    const CudaPhysical mine = together(bootstrap_, "cuda: make own window", [&] { return make(by_fabric); });
    const Mapping own = together(bootstrap_, "cuda: map own window", [&] { return map_zeroed(mine); });
    const WindowOffer offer(own);
    const auto exhibits = exchange(mine, offer, by_fabric);
    std::vector<Descriptor> descriptors(exhibits.size());
    if (!by_fabric && some_are_processes(exhibits)) {
      const Descriptor shared =
          together(bootstrap_, "cuda: share own window", [&] { return mine.export_descriptor(); });
      descriptors = exchange_descriptors(bootstrap_, shared, deadline_);
    }
    return together(bootstrap_, "cuda: map peers' windows", [&] {
      Windows windows(exhibits.size());
      for (int peer = 0; peer < bootstrap_.size(); ++peer) {
        windows[peer] = peer == bootstrap_.rank() ? own : map_peer(exhibits[peer], descriptors[peer]);
      }
      return windows;
    });
  }

 private:
  CudaPhysical make(bool by_fabric) const {
    check_room();
    return CudaPhysical::create(wanted_.bytes, wanted_.device,
                                by_fabric ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  }

  /// What does not fit here would not be welcome in host memory either.
  void check_room() const {
    std::size_t free = 0, all = 0;
    check_cuda(cudaMemGetInfo(&free, &all), "asking for free GPU memory");
    HEDDLE_CHECK(wanted_.bytes <= free, "a window of {} bytes does not fit: GPU {} has {} of {} bytes free",
                 wanted_.bytes, wanted_.device, free, all);
  }

  Mapping map_zeroed(const CudaPhysical& mine) const {
    Mapping own = mine.map(wanted_.device);
    check_cuda(cudaMemset(own.get(), 0, mine.length()), "clearing a window");
    check_cuda(cudaDeviceSynchronize(), "clearing a window");
    return own;
  }

  std::vector<Exhibit> exchange(const CudaPhysical& mine, const WindowOffer& offer, bool by_fabric) {
    const Exhibit exhibit = together(bootstrap_, "cuda: describe own window", [&] {
      Exhibit own{.host = host_identity(), .process = process_identity(), .offer = offer.number(),
                  .length = mine.length()};
      if (!by_fabric) return own;
      const FabricHandle handle = mine.export_fabric();
      own.fabric.assign(handle.begin(), handle.end());
      return own;
    });
    std::vector<Exhibit> exhibits;
    for (const Bytes& message : bootstrap_.all_gather(exhibit.pack(), "cuda: exchange windows")) {
      exhibits.push_back(Exhibit::unpack(message));
    }
    return exhibits;
  }

  // The same answer on all ranks.
  static bool some_are_processes(const std::vector<Exhibit>& exhibits) {
    for (const Exhibit& exhibit : exhibits) {
      if (exhibit.process != exhibits[0].process) return true;
    }
    return false;
  }

  Mapping map_peer(const Exhibit& peer, const Descriptor& descriptor) const {
    if (peer.process == process_identity()) {
      const Mapping window = find_window(peer.offer);
      if (!window) fail(ErrorCode::destroyed, "a thread took its window back before it was mapped");
      return CudaPhysical::of(window, peer.length).map(wanted_.device);
    }
    if (!peer.fabric.empty()) {
      FabricHandle handle{};
      HEDDLE_CHECK(peer.fabric.size() == handle.size(), "a fabric handle has {} bytes, must be {}", peer.fabric.size(),
                   handle.size());
      std::copy(peer.fabric.begin(), peer.fabric.end(), handle.begin());
      return CudaPhysical::import(handle, peer.length).map(wanted_.device);
    }
    if (!descriptor) return nullptr;  // on another host: far
    return CudaPhysical::import(descriptor, peer.length).map(wanted_.device);
  }

  Bootstrap& bootstrap_;
  const CudaWindows& wanted_;
  std::chrono::nanoseconds deadline_;
};

void say(int rank, CudaPath failed, const std::string& why) {
  if (rank != 0) return;
  switch (failed) {
    case CudaPath::fabric: return log_info("GPU windows are not shared by fabric handle: {}", why);
    case CudaPath::descriptor: return log_info("GPU windows are not shared by file descriptor: {}", why);
    default: return log_warn("GPU windows go to pinned host memory, which is slower: {}", why);
  }
}

std::string text_of(const RankPairs& pairs) {
  std::string text;
  for (const auto& [a, b] : pairs) text += fmt::format("{}{}-{}", text.empty() ? "" : ", ", a, b);
  return text;
}

/// Whom the GPUs keep apart, and whom the caller does. All ranks come to the same.
RankPairs all_apart(Bootstrap& bootstrap, const CudaWindows& wanted, std::chrono::nanoseconds deadline) {
  RankPairs apart = find_apart(bootstrap, wanted.device, deadline);
  for (const auto& [a, b] : wanted.apart) apart.add(a, b);
  const int ranks = bootstrap.size();
  const auto pairs = static_cast<int>(std::distance(apart.begin(), apart.end()));
  if (pairs == 0) fail(ErrorCode::system, "all pairs of GPUs reach each other");
  if (pairs == ranks * (ranks - 1) / 2) fail(ErrorCode::system, "no two GPUs reach each other");
  if (bootstrap.rank() == 0) log_warn("ranks {} meet in pinned host memory, which is slower", text_of(apart));
  return apart;
}

bool is_tried(CudaPath path, const CudaWindows& wanted, bool may_mix) {
  if (wanted.path != CudaPath::automatic) return wanted.path == path;
  if (path == CudaPath::mixed) return may_mix;
  return path == CudaPath::pinned || wanted.apart.empty();
}

}  // namespace

CudaMemory make_cuda_windows(Bootstrap& bootstrap, const CudaWindows& wanted, std::chrono::nanoseconds deadline,
                             std::span<const int> members) {
  const Membership membership =
      agree_on_window(bootstrap, fmt::format("cuda, {}", name_of(wanted.path)), wanted.bytes, members);
  const auto device = together(bootstrap, "cuda: take the GPU", [&] {
    cuda_driver();
    return std::make_unique<CudaDevice>(wanted.device);
  });
  const bool may_mix =
      wanted.layout && members.empty() && bootstrap.size() > 2;  // of two ranks, either all is pinned or nothing
  std::string reason;
  for (const CudaPath path : {CudaPath::fabric, CudaPath::descriptor, CudaPath::mixed, CudaPath::pinned}) {
    if (!is_tried(path, wanted, may_mix)) continue;
    try {
      CudaWindows tried = wanted;
      if (path == CudaPath::mixed) tried.apart = all_apart(bootstrap, wanted, deadline);
      Windows windows = Attempt(bootstrap, tried, deadline).run(path);
      return {{membership.rank_of(bootstrap.rank()), wanted.bytes, membership.by_rank(std::move(windows))},
              path,
              reason,
              tried.apart};
    } catch (const Error& error) {
      // All ranks are here with the same error, unless the group itself is broken; then the next step says so.
      if (error.code() != ErrorCode::system || path == CudaPath::pinned || wanted.path == path) throw;
      say(bootstrap.rank(), path, error.what());
      reason += fmt::format("{}{}: {}", reason.empty() ? "" : "; ", name_of(path), error.what());
    }
  }
  fail(ErrorCode::system, "no way to share GPU memory: {}", reason);
}

}  // namespace heddle
