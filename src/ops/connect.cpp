#include "ops/connect.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>

#include "bootstrap/agree.hpp"
#include "cpu/cpu_backend.hpp"
#include "memory/host_identity.hpp"
#include "memory/symmetric_memory.hpp"

namespace heddle {
namespace {

void check_config(const Config& config, int ranks) {
  HEDDLE_CHECK(ranks <= kMaxRanks, "Buffer: {} ranks, at most {}", ranks, kMaxRanks);
  HEDDLE_CHECK(config.experts >= 1, "Buffer: experts = {}, legal: 1 or more", config.experts);
  HEDDLE_CHECK(config.max_tokens >= 0, "Buffer: max_tokens = {}, legal: 0 (no limit) or more", config.max_tokens);
  HEDDLE_CHECK(config.threads >= 1 && config.threads <= 256, "Buffer: threads = {}, legal: 1 to 256", config.threads);
  HEDDLE_CHECK(config.timeout.count() > 0, "Buffer: timeout = {} ns, legal: more than 0", config.timeout.count());
  const int64_t least = window_bytes_for(ranks, kCellAlign * 16);
  HEDDLE_CHECK(config.window_bytes == 0 || config.window_bytes >= least,
               "Buffer: window_bytes = {}, legal: 0 (the default), or {} and more for {} ranks", config.window_bytes,
               least, ranks);
}

int64_t window_bytes_of(const Config& config) {
  return config.window_bytes > 0 ? config.window_bytes : kDefaultWindowBytes;
}

void agree_on(Bootstrap& bootstrap, const Config& config) {
  constexpr int kLayoutVersion = 1;
  const Setting settings[] = {
      {"layout version", fmt::format("{}", kLayoutVersion)},
      {"experts", fmt::format("{}", config.experts)},
      {"max_tokens", fmt::format("{}", config.max_tokens)},
      {"window_bytes", fmt::format("{}", window_bytes_of(config))},
      {"mask_late_peers", config.mask_late_peers ? "true" : "false"},
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

SymmetricMemory map_windows(Bootstrap& bootstrap, const Config& config) {
  const auto bytes = static_cast<size_t>(window_bytes_of(config));
  if (bootstrap.size() == 1) return make_local(bytes);
  if (all_in_one_process(bootstrap)) return make_heap(bootstrap, bytes, config.timeout);
  return make_shm(bootstrap, bytes, config.timeout);
}

void check_all_near(const SymmetricMemory& memory, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (memory.peer(rank) != nullptr) continue;
    fail(ErrorCode::system, "Buffer: rank {} is on another host, and there is no network transport yet", rank);
  }
}

}  // namespace

int64_t predicted_bytes(const Config& config, int ranks) {
  check_config(config, ranks);
  return window_bytes_of(config) + static_cast<int64_t>(sizeof(Ledger));
}

BufferParts connect(Bootstrap& bootstrap, const Config& config) {
  check_config(config, bootstrap.size());
  agree_on(bootstrap, config);
  auto memory = std::make_shared<SymmetricMemory>(map_windows(bootstrap, config));
  check_all_near(*memory, bootstrap.size());
  BufferParts parts;
  parts.topo = {.rank = bootstrap.rank(), .world = bootstrap.size(), .experts = config.experts};
  parts.config = config;
  parts.window_bytes = window_bytes_of(config);
  parts.backend = std::make_unique<CpuBackend<DirectPort>>(DirectPort(memory->view(), PeerView{}), config.threads);
  parts.memory = std::move(memory);
  return parts;
}

}  // namespace heddle
