// Outputs in torch's memory, for which its rules of streams and reuse hold.
#pragma once

#include <heddle/tensor.hpp>

#include "bindings.hpp"

namespace heddle::python {

/// An allocator of contiguous tensors of torch's on a device, without the GIL where torch allows it. If `make(dtype, shape)`
/// is not None, it makes them, and is trusted.
Allocate torch_allocator_of(nb::object make, Device);

/// A tensor of torch's own with the view's shape and strides, if that allocator made it by torch's C interface; else nothing.
nb::object torch_tensor_of(const Tensor&);

}  // namespace heddle::python
