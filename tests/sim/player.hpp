// Plays a program through the Buffer of every rank, in one universe.
#pragma once

#include <string>
#include <vector>

#include "sim/program.hpp"
#include "sim/universe.hpp"

namespace heddle::testing {

class Player {
 public:
  /// watched: the universe can be hashed, and no time passes.
  explicit Player(const Program&, bool watched = false);
  ~Player();

  Universe& universe() { return universe_; }
  void start();
  /// After the end: what went wrong, on which rank; empty: nothing.
  std::string failures();

 private:
  static UniverseSettings settings_of(const Program&, bool watched);

  Program program_;
  bool watched_;
  std::vector<std::vector<std::string>> failures_;  // [rank]
  Universe universe_;  // unwinds the ranks before the rest goes
};

/// Plays it with the schedule of the program's seed.
std::string play(const Program&);

/// HEDDLE_SIM_SEED, or `otherwise`.
uint64_t sim_seed(uint64_t otherwise);

}  // namespace heddle::testing
