// Element types as DLPack and NumPy say them.
#pragma once

#include <heddle/dtype.hpp>

#include <nanobind/ndarray.h>

#include <optional>
#include <string>

namespace heddle::python {

namespace nb = nanobind;

/// Nothing for a type that Heddle does not know. Bool and uint8 are u8; uint32 is i32: the bits are what travels.
std::optional<DType> dtype_of(nb::dlpack::dtype);
nb::dlpack::dtype dlpack_of(DType);
/// NumPy has no bfloat16 and no float8: their bits as uint16 and uint8.
nb::dlpack::dtype numpy_of(DType);
/// "float64", for messages.
std::string describe(nb::dlpack::dtype);

}  // namespace heddle::python
