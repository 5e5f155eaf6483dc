// Where calls run whose arrays are torch's.
#pragma once

#include "exchange.hpp"
#include "own_buffer.hpp"
#include "placement.hpp"

namespace heddle::python {

/// Options of a call on torch's current stream of the buffer's GPU, or on the CPU.
template <class Options>
Options placed_by_torch(const OwnBuffer& own, const Options& options) {
  const Device device = own.get().config().device;
  return placed(options, device.kind == DeviceKind::cuda ? std::optional(torch_stream(device.index)) : std::nullopt, 0);
}

}  // namespace heddle::python
