// Memory that peers may still store into, though its call is over for this rank (I14).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace heddle {

class Quarantine {
 public:
  /// Until a reset of all ranks.
  void keep(std::shared_ptr<void> block) { blocks_.push_back(std::move(block)); }
  /// Until the step with this number has ended well.
  void keep_until(uint64_t step, std::shared_ptr<void> block) { unsettled_.push_back({step, std::move(block)}); }

  /// All steps up to this one have ended, and no fault was met.
  void settle(uint64_t ended) {
    while (!unsettled_.empty() && unsettled_.front().step <= ended) unsettled_.pop_front();
  }
  /// A fault was met: nothing that waits for a step can be let go.
  void seize() {
    for (Unsettled& one : unsettled_) blocks_.push_back(std::move(one.block));
    unsettled_.clear();
  }
  void clear() { blocks_.clear(); }

 private:
  struct Unsettled {
    uint64_t step;
    std::shared_ptr<void> block;
  };

  std::vector<std::shared_ptr<void>> blocks_;
  std::deque<Unsettled> unsettled_;
};

}  // namespace heddle
