// Under AddressSanitizer: host memory that is handed to the driver, whose own reads and writes are not seen by it.
#pragma once

#include <cstddef>

#include "base/error.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace heddle::testing {

/// Throws if some of the bytes are not to be used.
inline void check_host_bytes(const void* first, size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  const void* bad = __asan_region_is_poisoned(const_cast<void*>(first), bytes);
  if (bad != nullptr) fail(ErrorCode::usage, "a copy of {} bytes at {} of the host: {} is not to be used", bytes, first, bad);
#else
  (void)first, (void)bytes;
#endif
}

}  // namespace heddle::testing
