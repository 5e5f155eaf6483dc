// Arrays that come in: torch tensors, and whatever speaks DLPack or the buffer protocol, read-only ones included.
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
  nb::object owner;  // instead of held: a tensor of torch's
  TensorView view;
};

/// None gives a view that is not set. `dtype` names what the elements are where the array cannot say it (bfloat16 as
/// uint16); its size must be the array's. Throws Error{usage} naming `argument`.
Array array_of(nb::handle object, const char* argument, const std::optional<std::string>& dtype = std::nullopt);

enum class Dense { all, rows };  // rows: each is dense, and they may lie apart

/// The same, of a contiguous copy if the array is not dense.
Array dense_array_of(nb::handle object, const char* argument, Dense,
                     const std::optional<std::string>& dtype = std::nullopt);

/// One element, in an array of any shape that has no more.
Array scalar_of(nb::handle object, const char* argument);

/// The same as array_of() for memory that Heddle writes to: read-only arrays are refused.
Array writable_array_of(nb::handle object, const char* argument,
                        const std::optional<std::string>& dtype = std::nullopt);

}  // namespace heddle::python
