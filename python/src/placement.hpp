// Where a call runs, as Python says it.
#pragma once

#include <heddle/placement.hpp>

#include <cstdint>
#include <optional>

namespace heddle::python {

/// `stream` is a handle as torch and CuPy give it: 0 is the default stream, which C++ calls cudaStreamLegacy. None: no stream.
inline Placement placement(std::optional<uintptr_t> stream, int num_sms) {
  constexpr uintptr_t kLegacy = 1;
  Placement on;
  if (stream) on.stream = reinterpret_cast<CUstream_st*>(*stream == 0 ? kLegacy : *stream);
  on.num_sms = num_sms;
  return on;
}

/// Options of a call with where it runs.
template <class Options>
Options placed(Options options, std::optional<uintptr_t> stream, int num_sms) {
  options.on = placement(stream, num_sms);
  return options;
}

}  // namespace heddle::python
