#include "array.hpp"

#include <heddle/error.hpp>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "dtype.hpp"

namespace heddle::python {
namespace {

constexpr const char* kLegal =
    "uint8, float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, int32, int64, bool (dtype= says what uint16 stands "
    "for)";

DType element_type(const nb::ndarray<nb::ro>& array, const char* argument, const std::optional<std::string>& dtype) {
  const auto own = dtype_of(array.dtype());
  if (dtype) {
    const DType wanted = parse_dtype(*dtype);
    HEDDLE_CHECK(size_of(wanted) == array.itemsize(), "{} has elements of {} bytes ({}), dtype {} has {}", argument,
                 array.itemsize(), describe(array.dtype()), *dtype, size_of(wanted));
    return wanted;
  }
  HEDDLE_CHECK(own, "{} is {}, legal: {}", argument, describe(array.dtype()), kLegal);
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
  return {.held = std::move(array), .owner = {}, .view = std::move(view)};
}

using Shape = std::vector<int64_t>;

DType type_of(const std::string& name, const char* argument) {
  try {
    return parse_dtype(name);
  } catch (const Error&) {
    fail(ErrorCode::usage, "{} is {}, legal: {}", argument, name, kLegal);
  }
}

Array array_of_tuple(const nb::tuple& tensor, const char* argument, const std::optional<std::string>& dtype) {
  TensorView view;
  view.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(tensor[1]));
  const auto name = nb::cast<std::string>(tensor[2]);
  const DType own = type_of(name, argument);
  view.dtype = dtype ? parse_dtype(*dtype) : own;
  HEDDLE_CHECK(size_of(view.dtype) == size_of(own), "{} has elements of {} bytes ({}), dtype {} has {}", argument,
               size_of(own), name, name_of(view.dtype), size_of(view.dtype));
  view.shape = nb::cast<Shape>(tensor[3]);
  if (view.numel() > 0) view.strides = nb::cast<Shape>(tensor[4]);
  if (!tensor[5].is_none()) view.device = {DeviceKind::cuda, nb::cast<int>(tensor[5])};
  HEDDLE_CHECK(!view.shape.empty(), "{} has no dimensions, legal: 1 and up", argument);
  return {.held = {}, .owner = nb::borrow(tensor[0]), .view = std::move(view)};
}

}  // namespace

Array array_of(nb::handle object, const char* argument, const std::optional<std::string>& dtype) {
  if (object.is_none()) return {};
  if (nb::isinstance<nb::tuple>(object)) return array_of_tuple(nb::borrow<nb::tuple>(object), argument, dtype);
  nb::ndarray<nb::ro> array;
  HEDDLE_CHECK(nb::try_cast(object, array),
               "{} is a {}, legal: a NumPy array, a torch tensor or another object with __dlpack__", argument,
               nb::type_name(object.type()).c_str());
  return view_of(std::move(array), argument, dtype);
}

Array writable_array_of(nb::handle object, const char* argument, const std::optional<std::string>& dtype) {
  if (object.is_none()) return {};
  if (nb::isinstance<nb::tuple>(object)) return array_of_tuple(nb::borrow<nb::tuple>(object), argument, dtype);
  nb::ndarray<> array;
  HEDDLE_CHECK(nb::try_cast(object, array), "{} is a {}, legal: a writable array", argument,
               nb::type_name(object.type()).c_str());
  return view_of(nb::ndarray<nb::ro>(array), argument, dtype);
}

}  // namespace heddle::python
