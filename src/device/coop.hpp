// Who works together. A coop is a set of workers that share the items of a step; a worker has lanes that share one item.
//
//   coop   index() of size()   lane() of lanes()   sync()                    worker_sync()
//   Solo   0 of 1              0 of 1              nothing                   nothing
//   Team   thread of threads   0 of 1              a barrier of the threads  nothing
//   Warp   0 of 1              0..31 of 32         __syncwarp                __syncwarp
//   Block  warp of warps       0..31 of 32         __syncthreads             __syncwarp
//
// sync() orders memory between the members: what one wrote before it, all may read after it. Every member must reach it.
#pragma once

#include "base/macros.hpp"

namespace heddle {

struct Solo {
  HEDDLE_HD int index() const { return 0; }
  HEDDLE_HD int size() const { return 1; }
  HEDDLE_HD int lane() const { return 0; }
  HEDDLE_HD int lanes() const { return 1; }
  HEDDLE_HD void sync() const {}
  HEDDLE_HD void worker_sync() const {}
};

/// The member that does what must be done once. Follow it with sync() where others need to see the effect.
template <class Coop>
HEDDLE_HD bool is_leader(const Coop& coop) {
  return coop.index() == 0 && coop.lane() == 0;
}

/// Calls item(i) for each i in [first, count) dealt to this worker; all lanes of the worker get the same items.
template <class Coop, class Item>
HEDDLE_HD void deal(const Coop& coop, long first, long count, Item item) {
  for (long i = first + coop.index(); i < count; i += coop.size()) item(i);
}

/// As deal(), one item a lane.
template <class Coop, class Item>
HEDDLE_HD void deal_lanes(const Coop& coop, long first, long count, Item item) {
  const long width = static_cast<long>(coop.size()) * coop.lanes();
  for (long i = first + coop.index() * coop.lanes() + coop.lane(); i < count; i += width) item(i);
}

}  // namespace heddle
