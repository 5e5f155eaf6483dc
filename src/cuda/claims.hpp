// How the work of a pump is shared: how many workers of a block send, and who takes which item.
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "device/atomic.hpp"
#include "device/board.hpp"

namespace heddle {

/// How many workers of a block send. Some 1-2 MB on its way fill a link; more senders only make the last rows late.
struct SenderRule {
  int least;   // of a block
  int in_all;  // of all blocks together, about

  HEDDLE_HD int of(int blocks, int workers) const {
    const int each = static_cast<int>(ceil_div(in_all, blocks));
    const int wanted = each < least ? least : each;
    const int most = workers > 4 ? workers * 3 / 4 : workers > 1 ? workers - 1 : 1;
    return wanted < most ? wanted : most;
  }
};

/// Items 0, 1, 2, ... of a queue; the first `fixed` are one a worker. The next claim is on its way while an item is
/// worked on.
template <class Coop, class Port>
class Claims {
 public:
  /// `first` below 0: this worker has no fixed item.
  HEDDLE_HD Claims(const Coop& coop, const Desk<Coop, Port>& desk, uint64_t* queue, int64_t first, int64_t fixed)
      : coop_(coop), desk_(desk), queue_(queue), fixed_(fixed) {
    if (first >= 0) ahead_ = static_cast<uint64_t>(first);
    else claim();
  }

  HEDDLE_HD int64_t take() {
    const auto item = static_cast<int64_t>(desk_.tell(ahead_));
    claim();
    return item;
  }

 private:
  HEDDLE_HD void claim() {
    if (coop_.lane() == 0) ahead_ = static_cast<uint64_t>(fixed_) + take_number(queue_);
  }

  const Coop& coop_;
  const Desk<Coop, Port>& desk_;
  uint64_t* queue_;
  int64_t fixed_;
  uint64_t ahead_ = 0;
};

}  // namespace heddle
