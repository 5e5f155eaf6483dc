#include "array.hpp"

#include <heddle/error.hpp>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "dtype.hpp"
#include "exchange.hpp"

namespace heddle::python {
namespace {

constexpr const char* kLegal =
    "uint8, float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, int32, int64, bool (dtype= says what uint16 stands "
    "for)";

using Dtype = nb::dlpack::dtype;

DType element_type(Dtype given, const char* argument, const std::optional<std::string>& dtype) {
  const auto own = dtype_of(given);
  if (dtype) {
    const DType wanted = parse_dtype(*dtype);
    HEDDLE_CHECK(size_of(wanted) * 8 == given.bits, "{} has elements of {} bytes ({}), dtype {} has {}", argument,
                 (given.bits + 7) / 8, describe(given), *dtype, size_of(wanted));
    return wanted;
  }
  HEDDLE_CHECK(own, "{} is {}, legal: {}", argument, describe(given), kLegal);
  return *own;
}

Device device_of(int type, int index, const char* argument) {
  switch (type) {
    case nb::device::cpu::value:
    case nb::device::cuda_host::value: return {DeviceKind::cpu, 0};
    case nb::device::cuda::value:
    case nb::device::cuda_managed::value: return {DeviceKind::cuda, index};
    default: fail(ErrorCode::usage, "{} is on DLPack device {}, legal: CPU and CUDA", argument, type);
  }
}

Array view_of(nb::ndarray<nb::ro> array, const char* argument, const std::optional<std::string>& dtype) {
  TensorView view;
  view.data = const_cast<void*>(static_cast<const void*>(array.data()));
  view.dtype = element_type(array.dtype(), argument, dtype);
  view.device = device_of(array.device_type(), array.device_id(), argument);
  for (size_t i = 0; i < array.ndim(); ++i) {
    view.shape.push_back(static_cast<int64_t>(array.shape(i)));
    view.strides.push_back(array.stride(i));
  }
  if (array.size() == 0) view.strides.clear();  // NumPy's are 0 there
  return {.held = std::move(array), .owner = {}, .view = std::move(view)};
}

/// What the object's framework lends by its table of functions; nothing if it has none, or not for this object.
std::optional<Array> lent_array(nb::handle object, const char* argument, const std::optional<std::string>& dtype) {
  const Exchange* exchange = exchange_of(object.type());
  if (exchange == nullptr) return std::nullopt;
  nb::dlpack::dltensor lent;
  if (exchange->look(object.ptr(), &lent) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  TensorView view{.data = static_cast<std::byte*>(lent.data) + lent.byte_offset,
                  .dtype = element_type(lent.dtype, argument, dtype),
                  .shape = {lent.shape, lent.shape + lent.ndim},
                  .strides = {lent.strides, lent.strides + lent.ndim},
                  .device = device_of(lent.device.device_type, lent.device.device_id, argument)};
  if (view.numel() == 0) view.strides.clear();
  return Array{.held = {}, .owner = nb::borrow(object), .view = std::move(view)};
}

/// A function of heddle.frameworks, for arrays that only Python knows how to take. For tensors of a torch without such a
/// table it gives (tensor, address, dtype, shape, strides, GPU or None): DLPack would ask for an exchange of streams, which
/// is not wanted here, and could not hand over float8.
nb::object front(const char* name) { return nb::module_::import_("heddle.frameworks").attr(name); }

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
  return {.held = {}, .owner = nb::borrow(tensor[0]), .view = std::move(view)};
}

/// What heddle.frameworks made of `object`; a tuple of a caller's is no array.
Array readable_array(nb::object readable, nb::handle object, const char* argument,
                     const std::optional<std::string>& dtype) {
  const bool is_described = !readable.is(object) && nb::isinstance<nb::tuple>(readable);
  if (is_described) return array_of_tuple(nb::borrow<nb::tuple>(readable), argument, dtype);
  nb::ndarray<nb::ro> array;
  HEDDLE_CHECK(nb::try_cast(readable, array),
               "{} is a {}, legal: a NumPy array, a torch tensor or another object with __dlpack__", argument,
               nb::type_name(object.type()).c_str());
  return view_of(std::move(array), argument, dtype);
}

Array any_array_of(nb::handle object, const char* argument, const std::optional<std::string>& dtype) {
  if (auto lent = lent_array(object, argument, dtype)) return std::move(*lent);
  return readable_array(front("readable")(object), object, argument, dtype);
}

Array checked(Array array, const char* argument) {
  HEDDLE_CHECK(!array.view.shape.empty(), "{} has no dimensions, legal: 1 and up", argument);
  HEDDLE_CHECK(array.view.data != nullptr || array.view.numel() == 0,
               "{} has no memory, legal: a tensor with data (not one that torch.compile traces with)", argument);
  return array;
}

}  // namespace

Array array_of(nb::handle object, const char* argument, const std::optional<std::string>& dtype) {
  if (object.is_none()) return {};
  return checked(any_array_of(object, argument, dtype), argument);
}

Array dense_array_of(nb::handle object, const char* argument, Dense dense, const std::optional<std::string>& dtype) {
  if (object.is_none()) return {};
  if (auto lent = lent_array(object, argument, dtype)) {
    const bool rows_do = dense == Dense::rows && lent->view.shape.size() == 2 && lent->view.has_dense_rows();
    if (rows_do || lent->view.is_contiguous()) return checked(std::move(*lent), argument);
  }
  const nb::object copy = front("dense")(object, nb::arg("inner") = dense == Dense::rows);
  return checked(readable_array(copy, object, argument, dtype), argument);
}

Array scalar_of(nb::handle object, const char* argument) {
  if (object.is_none()) return {};
  Array array = any_array_of(object, argument, std::nullopt);
  if (array.view.shape.empty()) array.view.shape = {1}, array.view.strides = {};
  return checked(std::move(array), argument);
}

Array writable_array_of(nb::handle object, const char* argument, const std::optional<std::string>& dtype) {
  if (object.is_none()) return {};
  if (auto lent = lent_array(object, argument, dtype)) return checked(std::move(*lent), argument);
  const nb::object ours = front("readable")(object);
  if (nb::isinstance<nb::tuple>(ours) && !ours.is(object)) {
    return array_of_tuple(nb::borrow<nb::tuple>(ours), argument, dtype);
  }
  nb::ndarray<> array;
  HEDDLE_CHECK(nb::try_cast(ours, array), "{} is a {}, legal: a writable array", argument,
               nb::type_name(object.type()).c_str());
  return checked(view_of(nb::ndarray<nb::ro>(array), argument, dtype), argument);
}

}  // namespace heddle::python
