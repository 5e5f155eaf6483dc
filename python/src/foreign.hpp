// An object of Python's that C++ keeps: a framework's array, or a callable.
#pragma once

#include <utility>
#include <vector>

#include "bindings.hpp"

namespace heddle::python {

/// Any thread may drop it, also when the interpreter has ended.
struct Foreign {
  nb::object array;
  std::vector<int64_t> shape;

  explicit Foreign(nb::object object, std::vector<int64_t> its_shape = {})
      : array(std::move(object)), shape(std::move(its_shape)) {}
  ~Foreign() {
    if (!nb::is_alive()) {
      array.release();
      return;
    }
    const nb::gil_scoped_acquire gil;
    array.reset();
  }
};

/// By its deleter a tensor's owner is known to be a Foreign.
struct DropForeign {
  void operator()(Foreign* foreign) const { delete foreign; }
};

}  // namespace heddle::python
