// Arrays that come in: whatever speaks DLPack or the buffer protocol, read-only ones included.
#pragma once

#include <heddle/tensor.hpp>

#include <nanobind/ndarray.h>

#include <optional>
#include <string>

namespace heddle::python {

namespace nb = nanobind;

/// A view of a caller's array and the reference that keeps it alive. To be dropped with the GIL held.
struct Array {
  nb::ndarray<nb::ro> held;
  nb::object owner;  // instead of held: a tensor of torch's, described by a tuple
  TensorView view;
};

/// Also takes (tensor, address, dtype, shape, strides, GPU or None): DLPack would ask for an exchange of streams, which is not
/// wanted here, and not every torch can hand over float8 by it.
/// None gives a view that is not set. `dtype` names what the elements are where the array cannot say it (bfloat16 as
/// uint16); its size must be the array's. Throws Error{usage} naming `argument`.
Array array_of(nb::handle object, const char* argument, const std::optional<std::string>& dtype = std::nullopt);

/// The same for memory that Heddle writes to: read-only arrays are refused.
Array writable_array_of(nb::handle object, const char* argument,
                        const std::optional<std::string>& dtype = std::nullopt);

}  // namespace heddle::python
