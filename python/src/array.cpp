#include "array.hpp"

#include <heddle/error.hpp>

#include "dtype.hpp"

namespace heddle::python {
namespace {

DType element_type(const nb::ndarray<nb::ro>& array, const char* argument, const std::optional<std::string>& dtype) {
  const auto own = dtype_of(array.dtype());
  if (dtype) {
    const DType wanted = parse_dtype(*dtype);
    HEDDLE_CHECK(size_of(wanted) == array.itemsize(), "{} has elements of {} bytes ({}), dtype {} has {}", argument,
                 array.itemsize(), describe(array.dtype()), *dtype, size_of(wanted));
    return wanted;
  }
  HEDDLE_CHECK(own,
               "{} is {}, legal: uint8, float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, int32, int64, bool "
               "(dtype= says what uint16 stands for)",
               argument, describe(array.dtype()));
  return *own;
}

Device device_of(const nb::ndarray<nb::ro>& array, const char* argument) {
  switch (array.device_type()) {
    case nb::device::cpu::value:
    case nb::device::cuda_host::value: return {DeviceKind::cpu, 0};
    case nb::device::cuda::value:
    case nb::device::cuda_managed::value: return {DeviceKind::cuda, array.device_id()};
    default: fail(ErrorCode::usage, "{} is on DLPack device {}, legal: CPU and CUDA", argument, array.device_type());
  }
}

Array view_of(nb::ndarray<nb::ro> array, const char* argument, const std::optional<std::string>& dtype) {
  TensorView view;
  view.data = const_cast<void*>(static_cast<const void*>(array.data()));
  view.dtype = element_type(array, argument, dtype);
  view.device = device_of(array, argument);
  for (size_t i = 0; i < array.ndim(); ++i) {
    view.shape.push_back(static_cast<int64_t>(array.shape(i)));
    view.strides.push_back(array.stride(i));
  }
  if (array.size() == 0) view.strides.clear();  // NumPy's are 0 there
  HEDDLE_CHECK(array.ndim() > 0, "{} has no dimensions, legal: 1 and up", argument);
  return {std::move(array), std::move(view)};
}

}  // namespace

Array array_of(nb::handle object, const char* argument, const std::optional<std::string>& dtype) {
  if (object.is_none()) return {};
  nb::ndarray<nb::ro> array;
  HEDDLE_CHECK(nb::try_cast(object, array),
               "{} is a {}, legal: a NumPy array, a torch tensor or another object with __dlpack__", argument,
               nb::type_name(object.type()).c_str());
  return view_of(std::move(array), argument, dtype);
}

Array writable_array_of(nb::handle object, const char* argument, const std::optional<std::string>& dtype) {
  if (object.is_none()) return {};
  nb::ndarray<> array;
  HEDDLE_CHECK(nb::try_cast(object, array), "{} is a {}, legal: a writable array", argument,
               nb::type_name(object.type()).c_str());
  return view_of(nb::ndarray<nb::ro>(array), argument, dtype);
}

}  // namespace heddle::python
