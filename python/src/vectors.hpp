// Between NumPy arrays and the vectors that spec/ speaks.
#pragma once

#include <heddle/error.hpp>

#include <nanobind/ndarray.h>

#include <cstring>
#include <vector>

namespace heddle::python {

namespace nb = nanobind;

/// A copy of the array's elements in row-major order; nothing for None. std::byte stands for raw bytes of any type.
template <class T>
std::vector<T> vector_of(nb::handle object, const char* argument) {
  if (object.is_none()) return {};
  nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> array;
  HEDDLE_CHECK(nb::try_cast(object, array), "{} is a {}, legal: a contiguous NumPy array", argument,
               nb::type_name(object.type()).c_str());
  HEDDLE_CHECK((std::is_same_v<T, std::byte>) || array.itemsize() == sizeof(T),
               "{} has elements of {} bytes, legal: {}", argument, array.itemsize(), sizeof(T));
  std::vector<T> copy(array.nbytes() / sizeof(T));
  if (!copy.empty()) std::memcpy(copy.data(), array.data(), array.nbytes());
  return copy;
}

/// A one-dimensional array that owns the vector.
template <class T>
nb::object array_from(std::vector<T> vector) {
  using Element = std::conditional_t<std::is_same_v<T, std::byte>, uint8_t, T>;
  auto* held = new std::vector<T>(std::move(vector));
  const nb::capsule owner(held, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, Element>(held->data(), {held->size()}, owner), nb::rv_policy::reference);
}

}  // namespace heddle::python
