// Tensors that go out: memory of Heddle's (or of a framework's allocator) shared with the caller's framework, not copied.
#pragma once

#include <heddle/tensor.hpp>

#include "bindings.hpp"

namespace heddle::python {

/// A tensor whose memory lives as long as `owner`.
template <class Owner>
Tensor kept(const TensorView& view, Owner owner) {
  return {view, std::make_shared<Owner>(std::move(owner))};
}

/// None if it is not set; else a torch tensor, or a NumPy array (bfloat16 as its bits in uint16, float8 in uint8); on a GPU,
/// for others than torch, an object with __dlpack__.
nb::object exported(const Tensor& tensor, bool torch);

/// The framework's own array if its allocator made the tensor, and the tensor is all of it; else None.
nb::object foreign_array(const Tensor& tensor);

/// An allocator that asks `make(dtype_name, shape)` for each output and gets an array back. Called with or without the GIL.
Allocate allocator_of(nb::callable make);

}  // namespace heddle::python
