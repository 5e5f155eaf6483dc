#include "ops/connect.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/log.hpp"
#include "bootstrap/agree.hpp"
#include "bootstrap/together.hpp"
#include "cpu/cpu_backend.hpp"
#include "cuda/cuda_parts.hpp"
#include "memory/cuda_devices.hpp"
#include "memory/cuda_segments.hpp"
#include "memory/cuda_vmm.hpp"
#include "memory/heap_pool.hpp"
#include "memory/host_identity.hpp"
#include "memory/symmetric_memory.hpp"

namespace heddle {
namespace {

// A heap grows by so much at least: each step is mapped by all peers.
constexpr int64_t kHostStep = int64_t{4} << 20;
constexpr int64_t kGpuStep = int64_t{64} << 20;

void check_config(const Config& config, int ranks) {
  HEDDLE_CHECK(ranks <= kMaxRanks, "Buffer: {} ranks, at most {}", ranks, kMaxRanks);
  HEDDLE_CHECK(config.experts >= 1 && config.experts <= kMaxExperts, "Buffer: experts = {}, legal: 1 to {}", config.experts,
               kMaxExperts);
  HEDDLE_CHECK(config.max_tokens >= 0, "Buffer: max_tokens = {}, legal: 0 (no limit) or more", config.max_tokens);
  HEDDLE_CHECK(config.threads >= 1 && config.threads <= 256, "Buffer: threads = {}, legal: 1 to 256", config.threads);
  HEDDLE_CHECK(config.num_sms >= 0, "Buffer: num_sms = {}, legal: 0 (all) or more", config.num_sms);
  for (const auto& [a, b] : config.pinned_pairs) {
    HEDDLE_CHECK(a >= 0 && a < ranks && b >= 0 && b < ranks && a != b,
                 "Buffer: pinned_pairs has ({}, {}), legal: two different ranks of 0 to {}", a, b, ranks - 1);
  }
  HEDDLE_CHECK(config.timeout.count() > 0, "Buffer: timeout = {} ns, legal: more than 0", config.timeout.count());
  HEDDLE_CHECK(config.heap_bytes >= 0, "Buffer: heap_bytes = {}, legal: 0 (no rows in place) or more", config.heap_bytes);
  const int64_t least = window_bytes_for(ranks, kCellAlign * 16);
  HEDDLE_CHECK(config.window_bytes == 0 || config.window_bytes >= least,
               "Buffer: window_bytes = {}, legal: 0 (the default), or {} and more for {} ranks", config.window_bytes,
               least, ranks);
}

int64_t window_bytes_of(const Config& config) {
  return config.window_bytes > 0 ? config.window_bytes : kDefaultWindowBytes;
}

/// On a GPU peers write self-announcing words, too; not to pinned memory.
int64_t gpu_window_bytes_of(const Config& config, int ranks) {
  const int64_t bytes = window_bytes_of(config);
  return config.pinned_windows ? bytes : Window::bytes_with_words(ranks, bytes);
}

/// "0-2", the lower rank first.
std::vector<std::string> pinned_pairs_of(const Config& config) {
  std::set<std::string> names;
  for (const auto& [a, b] : config.pinned_pairs) names.insert(fmt::format("{}-{}", std::min(a, b), std::max(a, b)));
  return {names.begin(), names.end()};
}

void agree_on(Bootstrap& bootstrap, const Config& config) {
  constexpr int kLayoutVersion = 5;
  const Setting settings[] = {
      {"layout version", fmt::format("{}", kLayoutVersion)},
      {"experts", fmt::format("{}", config.experts)},
      {"max_tokens", fmt::format("{}", config.max_tokens)},
      {"window_bytes", fmt::format("{}", window_bytes_of(config))},
      {"mask_late_peers", config.mask_late_peers ? "true" : "false"},
      {"device", config.device.kind == DeviceKind::cpu ? "cpu" : "cuda"},
      {"heap_bytes", fmt::format("{}", config.heap_bytes)},
      {"pinned_windows", config.pinned_windows ? "true" : "false"},
      {"pinned_pairs", fmt::format("{}", fmt::join(pinned_pairs_of(config), ", "))},
  };
  agree(bootstrap, settings);
}

bool all_in_one_process(Bootstrap& bootstrap) {
  const std::string mine = fmt::format("{} {}", host_identity(), ::getpid());
  const auto all = bootstrap.all_gather(std::as_bytes(std::span(mine)), "finding out who shares a process");
  for (const Bytes& other : all) {
    if (other.size() != mine.size() || std::memcmp(other.data(), mine.data(), mine.size()) != 0) return false;
  }
  return true;
}

void check_all_near(const SymmetricMemory& memory, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (memory.peer(rank) != nullptr) continue;
    fail(ErrorCode::system, "Buffer: rank {} is on another host, and there is no network transport yet", rank);
  }
}

BufferParts parts_with(Bootstrap& bootstrap, const Config& config, std::shared_ptr<SymmetricMemory> memory) {
  check_all_near(*memory, bootstrap.size());
  BufferParts parts;
  parts.topo = {.rank = bootstrap.rank(), .world = bootstrap.size(), .experts = config.experts};
  parts.config = config;
  parts.window_bytes = window_bytes_of(config);
  parts.memory = std::move(memory);
  return parts;
}

/// Rows in place need a heap that all ranks have, and a pair is never closed by a deadline (I14).
bool wants_heap(const Config& config) { return config.heap_bytes > 0 && !config.mask_late_peers; }

std::shared_ptr<SymmetricHeap> make_heap(Bootstrap& bootstrap, const Config& config, std::shared_ptr<Segments> segments) {
  return std::make_shared<SymmetricHeap>(bootstrap, std::move(segments), config.heap_bytes);
}

void add_heap(BufferParts& parts, const std::shared_ptr<SymmetricHeap>& heap, int64_t step) {
  if (heap == nullptr) return;
  parts.in_place = true;
  parts.heap_pool = std::make_shared<HeapPool>(heap, step);
  parts.heap = [pool = parts.heap_pool](int64_t bytes) -> std::optional<HeapBlock> {
    auto block = pool->take(bytes);
    if (!block) return std::nullopt;
    return HeapBlock{.memory = std::move(block->memory), .offset = block->offset};
  };
  parts.heap_offset = [heap](const void* memory, int64_t bytes) { return heap->offset_of(memory, bytes); };
}

PeerView view_of(const std::shared_ptr<SymmetricHeap>& heap) { return heap == nullptr ? PeerView{} : heap->view(); }

BufferParts connect_on_cpu(Bootstrap& bootstrap, const Config& config) {
  const auto bytes = static_cast<size_t>(window_bytes_of(config));
  const bool is_heap = bootstrap.size() == 1 || all_in_one_process(bootstrap);
  auto memory = std::make_shared<SymmetricMemory>(bootstrap.size() == 1 ? make_local(bytes)
                                                  : is_heap ? make_heap(bootstrap, bytes, config.timeout)
                                                            : make_shm(bootstrap, bytes, config.timeout));
  BufferParts parts = parts_with(bootstrap, config, memory);
  parts.windows = is_heap ? "heap" : "shared memory";
  parts.paths.assign(static_cast<size_t>(bootstrap.size()), parts.windows);
  const auto heap = wants_heap(config) ? make_heap(bootstrap, config, host_segments()) : nullptr;
  add_heap(parts, heap, kHostStep);
  parts.backend = std::make_unique<CpuBackend<DirectPort>>(DirectPort(memory->view(), view_of(heap)), config.threads);
  return parts;
}

CudaDeviceInfo find_gpu(const Device& device) {
  if (const std::string problem = cuda_problem(); !problem.empty()) {
    fail(ErrorCode::system, "Buffer: device {} cannot be used: {}", name_of(device), problem);
  }
  const auto gpus = list_cuda_devices();
  HEDDLE_CHECK(device.index >= 0 && device.index < static_cast<int>(gpus.size()),
               "Buffer: device = {}, legal: cuda:0 to cuda:{}", name_of(device), gpus.size() - 1);
  return gpus[static_cast<size_t>(device.index)];
}

/// Blocks of a call wait for one another, so those of all ranks that share a GPU must fit on it at once.
int sms_of(Bootstrap& bootstrap, const Config& config, const CudaDeviceInfo& gpu) {
  const std::string mine = fmt::format("{} {}", host_identity(), gpu.identity);
  const auto all = bootstrap.all_gather(std::as_bytes(std::span(mine)), "finding out who shares a GPU");
  const auto is_here = [&](const Bytes& other) {
    return other.size() == mine.size() && std::memcmp(other.data(), mine.data(), mine.size()) == 0;
  };
  const auto sharers = static_cast<int>(std::count_if(all.begin(), all.end(), is_here));
  const int share = std::max(1, gpu.num_sms / sharers);
  return config.num_sms > 0 ? std::min(config.num_sms, share) : share;
}

/// The GPUs that ranks of this process use: each writes to the heaps of all.
std::vector<int> gpus_here(Bootstrap& bootstrap, int device) {
  const std::string mine = fmt::format("{} {} {}", host_identity(), ::getpid(), device);
  const std::string here = fmt::format("{} {} ", host_identity(), ::getpid());
  std::set<int> devices;
  for (const Bytes& other : bootstrap.all_gather(std::as_bytes(std::span(mine)), "finding out which GPUs are used here")) {
    const std::string_view text(reinterpret_cast<const char*>(other.data()), other.size());
    if (text.starts_with(here)) devices.insert(std::stoi(std::string(text.substr(here.size()))));
  }
  return {devices.begin(), devices.end()};
}

/// Whether all ranks reach one another's GPU memory.
bool is_whole(CudaPath path) { return path == CudaPath::fabric || path == CudaPath::descriptor; }

std::shared_ptr<SymmetricHeap> make_gpu_heap(Bootstrap& bootstrap, const Config& config, CudaPath path) {
  if (!wants_heap(config)) return nullptr;
  if (!is_whole(path)) {
    log_info("heap_bytes = {} has no effect: some windows are in pinned memory, so rows are staged", config.heap_bytes);
    return nullptr;
  }
  const std::vector<int> readers = gpus_here(bootstrap, config.device.index);
  auto segments = together(bootstrap, "Buffer: prepare the heap", [&] { return cuda_segments(config.device.index, readers); });
  return make_heap(bootstrap, config, std::move(segments));
}

CudaWindows gpu_windows_of(const Config& config, int ranks) {
  CudaWindows wanted{.bytes = static_cast<size_t>(gpu_window_bytes_of(config, ranks)),
                     .device = config.device.index,
                     .path = config.pinned_windows ? CudaPath::pinned : CudaPath::automatic,
                     .layout = Window(ranks, window_bytes_of(config))};  // without words, as no pinned memory has them
  if (config.pinned_windows) return wanted;
  for (const auto& [a, b] : config.pinned_pairs) wanted.apart.add(a, b);
  return wanted;
}

/// By peer.
std::vector<std::string> paths_of(const CudaMemory& windows, const Bootstrap& bootstrap) {
  std::vector<std::string> paths;
  for (int peer = 0; peer < bootstrap.size(); ++peer) {
    const bool is_apart = windows.apart.contains(bootstrap.rank(), peer);
    const CudaPath path = windows.path != CudaPath::mixed ? windows.path
                          : is_apart                      ? CudaPath::pinned
                                                          : CudaPath::descriptor;
    paths.emplace_back(name_of(path));
  }
  return paths;
}

BufferParts connect_on_gpu(Bootstrap& bootstrap, Config config) {
  const auto gpu = together(bootstrap, "Buffer: find the GPU", [&] { return find_gpu(config.device); });
  const bool is_automatic = config.num_sms == 0;
  config.num_sms = sms_of(bootstrap, config, gpu);
  CudaMemory windows = make_cuda_windows(bootstrap, gpu_windows_of(config, bootstrap.size()), config.timeout);
  auto memory = std::make_shared<SymmetricMemory>(std::move(windows.memory));
  BufferParts parts = parts_with(bootstrap, config, memory);
  parts.windows = name_of(windows.path);
  parts.paths = paths_of(windows, bootstrap);
  parts.words = is_whole(windows.path);
  parts.sms_are_automatic = is_automatic;
  const auto heap = make_gpu_heap(bootstrap, config, windows.path);
  add_heap(parts, heap, kGpuStep);
  const CudaParts cuda{
      .device = config.device.index, .rank = bootstrap.rank(), .ranks = bootstrap.size(), .windows = memory->view(),
      .windows_on_host = windows.path == CudaPath::pinned, .heap = view_of(heap), .timeout_ns = static_cast<uint64_t>(config.timeout.count())};
  parts.backend = together(bootstrap, "Buffer: load the kernels", [&] { return make_cuda_backend(cuda); });
  return parts;
}

}  // namespace

int64_t predicted_bytes(const Config& config, int ranks) {
  check_config(config, ranks);
  const bool on_cpu = config.device.kind == DeviceKind::cpu;
  return (on_cpu ? window_bytes_of(config) : gpu_window_bytes_of(config, ranks)) + static_cast<int64_t>(sizeof(Ledger));
}

BufferParts connect(Bootstrap& bootstrap, const Config& config) {
  check_config(config, bootstrap.size());
  agree_on(bootstrap, config);
  return config.device.kind == DeviceKind::cpu ? connect_on_cpu(bootstrap, config) : connect_on_gpu(bootstrap, config);
}

}  // namespace heddle
