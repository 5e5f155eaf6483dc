// A small table that the lanes of a worker work out together and all of them read: lane k works out value k.
#pragma once

#include "base/macros.hpp"

namespace heddle {

/// value(k) of all k below `count`, at most kMost. On a GPU all lanes must look at the same k at the same time.
template <class Coop, class Value, int kMost, class Make>
class ToldByLanes {
 public:
  HEDDLE_HD ToldByLanes(const Coop& coop, int count, const Make& make) : make_(make) {
#if HEDDLE_ON_DEVICE
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int k = coop.lane() + h * 32;
      held_[h] = k < count ? make(k) : Value{};
    }
#else
    (void)coop, (void)count;
#endif
  }

  HEDDLE_HD Value operator[](int k) const {
#if HEDDLE_ON_DEVICE
    Value value{};
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (k / 32 == h) value = __shfl_sync(0xFFFFFFFFu, held_[h], k % 32);
    }
    return value;
#else
    return make_(k);
#endif
  }

 private:
  static constexpr int kHeld = (kMost + 31) / 32;
  const Make& make_;
#if HEDDLE_ON_DEVICE
  Value held_[kHeld];
#endif
};

/// `make` must outlive the table.
template <class Value, int kMost, class Coop, class Make>
HEDDLE_HD ToldByLanes<Coop, Value, kMost, Make> told_by_lanes(const Coop& coop, int count, const Make& make) {
  return {coop, count, make};
}

}  // namespace heddle
