// One rank whose peers are a script: its window is plain memory that the test writes, its puts are noted, its time moves by
// one at every look.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "protocol/call.hpp"

namespace heddle::testing {

struct NotedPut {
  int peer = 0;
  int64_t counter = 0;
  int64_t n = 0;
  int64_t offset = -1;  // -1: no bytes
  std::vector<std::byte> bytes;
};

class ScriptedPort {
 public:
  explicit ScriptedPort(int64_t window_bytes)
      : window_(new(std::align_val_t{kCellAlign}) std::byte[static_cast<size_t>(window_bytes)]{}) {}
  ~ScriptedPort() { operator delete[](window_, std::align_val_t{kCellAlign}); }
  ScriptedPort(const ScriptedPort&) = delete;

  std::byte* local() const { return window_; }
  std::byte* stage(const Target&, int64_t bytes) {
    staged_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(bytes)));
    return staged_.back().get();
  }
  void put(const Target& target, const std::byte* at, int64_t bytes, int64_t counter) {
    puts.push_back({.peer = target.peer, .counter = counter, .n = 1, .offset = target.offset, .bytes = {at, at + bytes}});
  }
  template <class Coop>
  void flush(const Coop&, int, int64_t, int64_t) {}
  void add(int peer, int64_t counter, int64_t n) { puts.push_back({.peer = peer, .counter = counter, .n = n}); }
  void drain() {}
  uint64_t now() { return time; }
  void relax(int) {
    ++time;
    if (on_look) on_look();
  }

  std::vector<NotedPut> puts;
  uint64_t time = 1000;
  std::function<void()> on_look;  // after a look in vain

 private:
  std::byte* window_;
  std::vector<std::unique_ptr<std::byte[]>> staged_;
};

inline void begin(const Call& call) {
  take_lane(call);
  for (int peer = 0; peer < call.ctx.topo.world; ++peer) begin_with(call, peer);
}

/// Rank 1 of 3 in a dispatch of some shape.
class ScriptedRank : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;
  static constexpr int kOwn = 1;
  static constexpr int64_t kWindow = 3 * 4 * 1024 + 8192;
  static constexpr uint64_t kTimeout = 100;

  ScriptedRank() : port_(kWindow) {
    call_.ctx = {.topo = {.rank = kOwn, .world = kRanks, .experts = 6}, .window = Window(kRanks, kWindow),
                 .ledger = &ledger_, .timeout_ns = kTimeout};
    call_.shape = {.payload_bytes = 64, .topk = 2, .experts = 6};
    call_.state = &state_;
  }

  Cells& cells(int source) { return *reinterpret_cast<Cells*>(port_.local() + call_.ctx.window.cells(source)); }
  uint64_t& counter(int source, Awaited what) {
    return *reinterpret_cast<uint64_t*>(port_.local() + counter_at(call_, source, what));
  }
  Header& header(Kind kind, int lane, int source) {
    return *reinterpret_cast<Header*>(port_.local() + call_.ctx.window.range(kind, lane, source));
  }

  /// The header that a peer of the same mind sends.
  Header fitting_header() {
    return {.seq = state_.seq, .incarnation = ledger_.incarnation, .hash = call_.shape.hash(), .slots = 4, .rounds = 1};
  }

  /// Puts to `peer` that advance the named counter there.
  int64_t added(int peer, Awaited what) {
    int64_t n = 0;
    for (const NotedPut& put : port_.puts) n += put.peer == peer && put.counter == counter_at(call_, kOwn, what) ? put.n : 0;
    return n;
  }

  ScriptedPort port_;
  Ledger ledger_;
  CallState state_;
  Call call_;
};

}  // namespace heddle::testing
