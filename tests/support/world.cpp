#include "support/world.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "bootstrap/in_process.hpp"
#include "cpu/cpu_backend.hpp"
#include "memory/cuda_devices.hpp"
#include "memory/cuda_vmm.hpp"
#include "ops/connect.hpp"
#include "support/fork_ranks.hpp"
#include "support/ports/reordering_port.hpp"
#include "support/thread_ranks.hpp"

namespace heddle::testing {
namespace {

constexpr int64_t kGpuHeapBytes = int64_t{64} << 20;

/// Leaves the body of a thread that plays dead.
struct Gone {};

/// A failure in a rank that is a thread must end the test as one elsewhere does.
void report(const World& world, int rank, const std::string& what) {
  ADD_FAILURE() << "rank " << rank << ": " << what << "\n" << world.describe();
}

}  // namespace

std::string name_of(const How& how) {
  return fmt::format("{}_{}_{}", how.ranks == Sharing::threads ? "thread" : "process",
                     how.port == Wire::plain ? "plain" : "reordering",
                     how.crew == Crewed::solo   ? "Solo"
                     : how.crew == Crewed::team ? "Team"
                                                : "Gpu");
}

std::vector<How> all_hows() {
  std::vector<How> hows;
  for (const Sharing ranks : {Sharing::threads, Sharing::processes}) {
    for (const Wire port : {Wire::plain, Wire::reordering}) {
      for (const Crewed crew : {Crewed::solo, Crewed::team}) hows.push_back({ranks, port, crew});
    }
  }
  hows.push_back({.crew = Crewed::gpu});
  return hows;
}

std::string problem_of(const How& how) { return how.crew == Crewed::gpu ? cuda_problem() : ""; }

Rank::Rank(const World& world, int index, Bootstrap* group)
    : world_(world), index_(index), buffer_(BufferAccess::make(parts_of(world, group))) {}

BufferParts Rank::parts_of(const World& world, Bootstrap* group) {
  BufferParts parts = group == nullptr ? parts_on_cpu(world) : parts_on_gpu(world, *group);
  memory_.emplace(*parts.backend);
  return parts;
}

/// GPUs are dealt round robin. Heaps grow by themselves, and give no more at once than the test says.
BufferParts Rank::parts_on_gpu(const World& world, Bootstrap& group) {
  const WorldSettings& settings = world.settings();
  const auto gpus = static_cast<int>(list_cuda_devices().size());
  Config config = settings.config;
  config.device = {DeviceKind::cuda, index_ % gpus};
  config.window_bytes = std::max<int64_t>(settings.window_bytes, 1 << 20);
  config.heap_bytes = settings.heap_bytes.empty() ? 0 : kGpuHeapBytes;
  BufferParts parts = connect(group, config);
  parts.window_bytes = settings.window_bytes;
  parts.in_place = settings.in_place;
  if (settings.heap_bytes.empty()) return parts;
  parts.heap = [heap = parts.heap, most = settings.heap_bytes[static_cast<size_t>(index_)]](int64_t bytes) {
    return bytes > most ? std::nullopt : heap(bytes);
  };
  return parts;
}

BufferParts Rank::parts_on_cpu(const World& world) {
  const WorldSettings& settings = world.settings();
  const bool has_heap = !settings.heap_bytes.empty();
  const PeerView windows = world.windows_.seen_by(index_);
  const PeerView heap = has_heap ? world.heap_.seen_by(index_) : PeerView{};
  BufferParts parts;
  parts.topo = {.rank = index_, .world = settings.ranks, .experts = settings.config.experts};
  parts.config = settings.config;
  parts.config.threads = world.how().crew == Crewed::solo ? 1 : settings.ranks < 3 ? 3 : 2;
  parts.window_bytes = settings.window_bytes;
  parts.in_place = settings.in_place;
  if (world.how().port == Wire::plain) {
    parts.backend = std::make_unique<CpuBackend<DirectPort>>(DirectPort(windows, heap), parts.config.threads);
  } else {
    queue_ = std::make_shared<PutQueue>(windows, heap, settings.seed * 8191 + static_cast<uint64_t>(index_));
    parts.backend = std::make_unique<CpuBackend<ReorderingPort>>(ReorderingPort(windows.local(), queue_),
                                                                 parts.config.threads);
  }
  if (has_heap) {
    heap_ = std::make_shared<TestHeap>(world.heap_.block(index_), world.heap_.bytes(index_));
    parts.heap = [heap_of_rank = heap_](int64_t bytes) { return heap_of_rank->allocate(bytes); };
  }
  return parts;
}

const std::byte* Rank::window() const { return world_.windows_.block(index_); }

void Rank::land_all() {
  if (queue_) queue_->land_all();
}

void Rank::barrier() {
  World::Control& control = world_.control();
  control.arrivals[index_].store(++meetings_, std::memory_order_release);
  for (int peer = 0; peer < world_.settings().ranks; ++peer) {
    while (control.arrivals[peer].load(std::memory_order_acquire) < meetings_ && control.gone[peer].load() == 0) {
      if (queue_) queue_->progress();
      std::this_thread::yield();
    }
  }
}

void Rank::will_die() { world_.control().gone[index_] = World::kDead; }

void Rank::die() {
  will_die();
  if (world_.how().ranks == Sharing::processes) die_now();
  throw Gone{};
}

World::World(const How& how, WorldSettings settings)
    : how_(how), settings_(std::move(settings)), control_(how.ranks, {int64_t{sizeof(Control)}}),
      windows_(how.ranks, std::vector<int64_t>(static_cast<size_t>(settings_.ranks), settings_.window_bytes)),
      heap_(how.ranks, settings_.heap_bytes) {}

std::string World::describe() const {
  return fmt::format("{}, {} ranks, seed {}: {}", name_of(how_), settings_.ranks, settings_.seed, settings_.story);
}

void World::run(const std::function<void(Rank&)>& body) {
  if (how_.ranks == Sharing::threads) run_threads(body);
  else run_processes(body);
}

void World::run_body(const std::function<void(Rank&)>& body, std::unique_ptr<Rank>& rank, int index,
                     Bootstrap* group) const {
  const ::testing::ScopedTrace trace(__FILE__, __LINE__, fmt::format("rank {} of {}", index, describe()));
  try {
    rank = std::make_unique<Rank>(*this, index, group);
    body(*rank);
  } catch (const std::exception& error) {
    report(*this, index, error.what());
  }
  control().gone[index] = kLeft;
}

void World::run_threads(const std::function<void(Rank&)>& body) {
  // GPUs wait for their kernels when memory goes, and these for ranks that may still be at work: all go at the end.
  const bool on_gpu = how_.crew == Crewed::gpu;
  std::vector<std::unique_ptr<Bootstrap>> groups;
  if (on_gpu) groups = in_process(settings_.ranks, kPatience);
  std::vector<std::unique_ptr<Rank>> ranks(static_cast<size_t>(settings_.ranks));
  std::vector<std::thread> threads;
  for (int index = 0; index < settings_.ranks; ++index) {
    threads.emplace_back([&, index] {
      auto& rank = ranks[static_cast<size_t>(index)];
      try {
        run_body(body, rank, index, on_gpu ? groups[static_cast<size_t>(index)].get() : nullptr);
        if (!on_gpu) rank.reset();
      } catch (const Gone&) {
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void World::run_processes(const std::function<void(Rank&)>& body) {
  const auto outcomes = run_ranks(settings_.ranks, [&](int index) {
    std::unique_ptr<Rank> rank;
    run_body(body, rank, index, nullptr);
  });
  for (const RankOutcome& outcome : outcomes) {
    if (outcome.ok() || control().gone[outcome.rank].load() == kDead) continue;
    report(*this, outcome.rank, ::testing::PrintToString(outcome));
  }
}

}  // namespace heddle::testing
