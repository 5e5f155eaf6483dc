// What AddressSanitizer and ThreadSanitizer want to know of a change of stack; nothing without them.
#pragma once

#include <cstddef>

extern "C" {
// Weak: there when the runtime is linked, also where this file itself is not instrumented.
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* size);
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
__attribute__((weak)) void __tsan_destroy_fiber(void* fiber);
__attribute__((weak)) void __tsan_switch_to_fiber(void* fiber, unsigned flags);
}

namespace heddle::testing {

/// A stack as AddressSanitizer sees it.
struct AddressView {
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  size_t size = 0;
};

/// `from` is null when its stack is left for ever.
inline void start_switch(AddressView* from, const AddressView& to) {
  if (__sanitizer_start_switch_fiber == nullptr) return;
  __sanitizer_start_switch_fiber(from == nullptr ? nullptr : &from->fake_stack, to.bottom, to.size);
}

/// On the new stack; `left` gets the borders of the one before.
inline void finish_switch(const AddressView& now, AddressView* left) {
  if (__sanitizer_finish_switch_fiber == nullptr) return;
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(now.fake_stack, &bottom, &size);
  if (left == nullptr) return;
  left->bottom = bottom;
  left->size = size;
}

inline void* current_tsan_fiber() { return __tsan_get_current_fiber == nullptr ? nullptr : __tsan_get_current_fiber(); }
inline void* make_tsan_fiber() { return __tsan_create_fiber == nullptr ? nullptr : __tsan_create_fiber(0); }
inline void destroy_tsan_fiber(void* fiber) {
  if (fiber != nullptr) __tsan_destroy_fiber(fiber);
}

/// The default of ThreadSanitizer, orders = true, would hide every release that the protocol lacks.
__attribute__((always_inline)) inline void switch_tsan_fiber(void* fiber, bool orders) {
  constexpr unsigned kNoSync = 1;  // __tsan_switch_to_fiber_no_sync
  if (fiber != nullptr) __tsan_switch_to_fiber(fiber, orders ? 0 : kNoSync);
}

}  // namespace heddle::testing
