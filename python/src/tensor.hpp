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

/// None if it is not set. Later export as NumPy array or torch tensor.
nb::object exported(const Tensor&);

/// An allocator that asks `make(dtype_name, shape)` for each output and gets an array back. Called with or without the GIL.
Allocate allocator_of(nb::callable make);

}  // namespace heddle::python
