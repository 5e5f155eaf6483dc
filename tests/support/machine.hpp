// What a test of the steps runs on: a backend and its memory. One object a rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

#include "protocol/backend.hpp"

namespace heddle {
class Bootstrap;
}

namespace heddle::testing {

class Machine {
 public:
  virtual ~Machine() = default;
  virtual Backend& backend() = 0;
  /// Between the test's memory and the steps'.
  virtual void read(void* to, const void* from, size_t bytes) = 0;
  virtual void write(void* to, const void* from, size_t bytes) = 0;
  /// This rank's part of a symmetric heap, for the rows of one output (I14); null if it has none, or less.
  virtual std::byte* heap(int64_t) { return nullptr; }
  virtual bool has_heap() const { return false; }

  // Of MachineOptions::held_writer: makes what it wrote there so far arrive in the reader's window; a counter behind the rest.
  virtual void deliver(int64_t /*offset*/, int64_t /*bytes*/) {}
  virtual void deliver_counter(int64_t /*offset*/) {}
};

struct MachineOptions {
  size_t window_bytes = size_t{8} << 20;
  std::chrono::nanoseconds timeout = std::chrono::seconds(20);
  bool tags = false;   // see Context
  bool words = false;  // the windows have self-announcing words
  bool masks_late = false;  // a deadline masks a peer
  int held_writer = -1;  // a rank whose puts to held_reader do not arrive
  int held_reader = -1;
  bool fills = true;   // memory starts out filled, so that what a step must not touch shows; benchmarks do without
};

/// Collective over ranks that are threads.
using MakeMachine = std::function<std::unique_ptr<Machine>(Bootstrap&, const MachineOptions&)>;

/// One CPU thread a rank.
std::unique_ptr<Machine> make_cpu_machine(Bootstrap&, const MachineOptions&);

}  // namespace heddle::testing
