// A small table that the lanes of a worker work out together and all of them read: lane k works out value k.
#pragma once

#include <cstdint>

#include "base/macros.hpp"

namespace heddle {

/// value(k) of all k below `count`, at most kMost. On a GPU all lanes must look at the same k at the same time.
template <class Coop, class Value, int kMost, class Make>
class ToldByLanes {
 public:
#if HEDDLE_ON_DEVICE
  HEDDLE_HD ToldByLanes(const Coop& coop, int count, const Make& make) {
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int k = coop.lane() + h * 32;
      held_[h] = k < count ? make(k) : Value{};
    }
  }
#else
  HEDDLE_HD ToldByLanes(const Coop&, int, const Make& make) : make_(make) {}
#endif

  HEDDLE_HD Value operator[](int k) const {
#if HEDDLE_ON_DEVICE
    Value value = __shfl_sync(0xFFFFFFFFu, held_[0], k % 32);
#pragma unroll
    for (int h = 1; h < kHeld; ++h) {  // by selection: what is indexed lies in memory
      const Value other = __shfl_sync(0xFFFFFFFFu, held_[h], k % 32);
      value = k / 32 == h ? other : value;
    }
    return value;
#else
    return make_(k);
#endif
  }

 private:
  static constexpr int kHeld = (kMost + 31) / 32;
#if HEDDLE_ON_DEVICE
  Value held_[kHeld];  // and nothing that points elsewhere: it would keep all it points to out of registers
#else
  Make make_;
#endif
};

template <class Value, int kMost, class Coop, class Make>
HEDDLE_HD ToldByLanes<Coop, Value, kMost, Make> told_by_lanes(const Coop& coop, int count, const Make& make) {
  return {coop, count, make};
}

/// The sum of value(i) of all i below `count`, in every lane. All lanes of the worker call together; where lanes cannot ask one
/// another, each works out all values.
template <class Coop, class Value>
HEDDLE_HD int64_t sum_by_lanes(const Coop& coop, int64_t count, const Value& value) {
  int64_t sum = 0;
#if HEDDLE_ON_DEVICE
#pragma unroll 8
  for (int64_t i = coop.lane(); i < count; i += coop.lanes()) sum += value(i);
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, static_cast<long long>(sum), apart);
#else
  (void)coop;
  for (int64_t i = 0; i < count; ++i) sum += value(i);
#endif
  return sum;
}

/// False: `value` is false in all lanes. All lanes of the worker call together; where lanes cannot ask one another, it may be
/// true all the same.
template <class Coop>
HEDDLE_HD bool may_hold_in_any(const Coop&, bool value) {
#if HEDDLE_ON_DEVICE
  return __any_sync(0xFFFFFFFFu, value);
#else
  (void)value;
  return true;
#endif
}

}  // namespace heddle
