// Python's seconds are floats, C++'s are std::chrono.
#pragma once

#include <heddle/error.hpp>

#include <chrono>

namespace heddle::python {

/// Throws Error{usage} for what no clock can count to: negative, NaN, or past some 292 years.
inline std::chrono::nanoseconds nanoseconds(double seconds, const char* argument) {
  constexpr double kMost = 9e9;
  HEDDLE_CHECK(seconds >= 0 && seconds <= kMost, "{} = {} s, legal: 0 to {:g}", argument, seconds, kMost);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

}  // namespace heddle::python
