#include "sim/sim_backend.hpp"

#include <vector>

#include "cpu/cpu_backend.hpp"
#include "sim/hash.hpp"
#include "sim/sim_port.hpp"

namespace heddle::testing {
namespace {

/// Keeps all memory that the steps were given, so that a rank's state can be hashed: between two waits nothing of it is
/// elsewhere but how far its step has come, and that shows in what it has written and sent.
class WatchedBackend : public CpuBackend<SimPort> {
 public:
  WatchedBackend(Universe& universe, int rank) : CpuBackend(SimPort(universe, rank), 1), universe_(universe), rank_(rank) {
    universe_.watch(rank_, [this] { return hash(); });
  }
  ~WatchedBackend() override { universe_.watch(rank_, nullptr); }

  std::shared_ptr<void> allocate(size_t bytes) override {
    blocks_.push_back({CpuBackend::allocate(bytes), static_cast<int64_t>(bytes)});
    return blocks_.back().memory;
  }

  bool dispatch_send(const DispatchArgs& a) override { return ++steps_, CpuBackend::dispatch_send(a); }
  bool dispatch_headers(const DispatchArgs& a) override { return ++steps_, CpuBackend::dispatch_headers(a); }
  bool dispatch_receive(const DispatchArgs& a) override { return ++steps_, CpuBackend::dispatch_receive(a); }
  bool combine_send(const CombineArgs& a) override { return ++steps_, CpuBackend::combine_send(a); }
  bool combine_headers(const CombineArgs& a) override { return ++steps_, CpuBackend::combine_headers(a); }
  bool combine_receive(const CombineArgs& a) override { return ++steps_, CpuBackend::combine_receive(a); }

 private:
  struct Block {
    std::shared_ptr<void> memory;
    int64_t bytes;
  };

  uint64_t hash() const {
    uint64_t h = mix(steps_, blocks_.size());
    for (const Block& block : blocks_) h = hash_bytes(h, block.memory.get(), block.bytes);
    return h;
  }

  Universe& universe_;
  int rank_;
  uint64_t steps_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace

std::unique_ptr<Backend> make_sim_backend(Universe& universe, int rank, bool watched) {
  if (watched) return std::make_unique<WatchedBackend>(universe, rank);
  return std::make_unique<CpuBackend<SimPort>>(SimPort(universe, rank), 1);
}

void add_count(uint64_t* word, uint64_t n) { add_release(word, n); }

}  // namespace heddle::testing
