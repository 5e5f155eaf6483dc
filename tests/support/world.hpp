// A world of ranks for a test: threads or forked processes, over a plain or a reordering port, alone or as a team; or
// threads that have a GPU each, or share it.
//
//   World(how, {.ranks = 4, .config = {.experts = 8}, .window_bytes = 1 << 20}).run([](Rank& r) {
//     const Plan plan = r.buffer().plan(...);
//   });
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/buffer_access.hpp"
#include "support/ports/put_queue.hpp"
#include "support/rank_memory.hpp"
#include "support/shared_blocks.hpp"
#include "support/test_heap.hpp"

namespace heddle::testing {

enum class Wire { plain, reordering };
enum class Crewed { solo, team, gpu };

struct How {
  Sharing ranks = Sharing::threads;
  Wire port = Wire::plain;
  Crewed crew = Crewed::solo;
};

/// "thread_plain_Solo"
std::string name_of(const How&);
/// All eight on the CPU, then that on GPUs.
std::vector<How> all_hows();
/// Why this machine cannot play it; empty: it can.
std::string problem_of(const How&);

struct WorldSettings {
  int ranks = 2;
  Config config;
  int64_t window_bytes = 0;
  bool in_place = false;
  std::vector<int64_t> heap_bytes;  // by rank, with in_place; empty: no heap
  uint64_t seed = 1;                // of the reordering port
  std::string story;                // what a failure is about
};

/// What one rank's body gets. Used by that rank's thread only.
class Rank {
 public:
  /// On GPUs collective over `group`.
  Rank(const class World&, int index, Bootstrap* group);

  int index() const { return index_; }
  Buffer& buffer() { return buffer_; }
  TestHeap* heap() { return heap_.get(); }
  /// This rank's window, for a look at its counters between calls.
  const std::byte* window() const;
  /// Waits until every rank that is still there has come; this rank's puts go on landing meanwhile.
  void barrier();
  /// Lands what is on its way: a rank that will not call again for a while is a network that still works.
  void land_all();
  /// A process dies as by kill -9. A thread leaves its body for ever; its buffer is not destroyed before the world is.
  [[noreturn]] void die();
  /// From now on the others do not wait for it in barrier(), and its end is no failure.
  void will_die();

 private:
  friend class World;
  BufferParts parts_of(const World&, Bootstrap* group);
  BufferParts parts_on_cpu(const World&);
  BufferParts parts_on_gpu(const World&, Bootstrap&);

  const World& world_;
  int index_;
  std::shared_ptr<PutQueue> queue_;  // of a reordering port
  std::shared_ptr<TestHeap> heap_;
  std::optional<RankMemory> memory_;
  Buffer buffer_;
  uint64_t meetings_ = 0;
};

class World {
 public:
  World(const How&, WorldSettings);

  /// Runs body on every rank. What a rank throws, or expects in vain, fails the test, with the story and the seed.
  void run(const std::function<void(Rank&)>& body);

  const How& how() const { return how_; }
  const WorldSettings& settings() const { return settings_; }
  std::string describe() const;

 private:
  friend class Rank;
  struct Control {  // in memory that processes share
    std::atomic<uint64_t> arrivals[kMaxRanks];
    std::atomic<uint64_t> gone[kMaxRanks];  // not 0: nobody waits for it in barrier()
  };
  static constexpr uint64_t kLeft = 1;  // its body has ended
  static constexpr uint64_t kDead = 2;  // on purpose

  Control& control() const { return *reinterpret_cast<Control*>(control_.block(0)); }
  void run_threads(const std::function<void(Rank&)>& body);
  void run_processes(const std::function<void(Rank&)>& body);
  void run_body(const std::function<void(Rank&)>& body, std::unique_ptr<Rank>& rank, int index, Bootstrap* group) const;

  How how_;
  WorldSettings settings_;
  SharedBlocks control_;
  SharedBlocks windows_;
  SharedBlocks heap_;
};

}  // namespace heddle::testing
