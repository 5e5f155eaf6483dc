// What a dispatch goes by.
#pragma once

#include <heddle/buffer.hpp>

#include "array.hpp"

namespace heddle::python {

/// A Plan, a Handle, or an array of ids.
struct Route {
  const Plan* plan = nullptr;
  const Handle* handle = nullptr;
  Array ids;

  explicit Route(nb::handle given) {
    if (nb::isinstance<Plan>(given)) plan = &nb::cast<const Plan&>(given);
    else if (nb::isinstance<Handle>(given)) handle = &nb::cast<const Handle&>(given);
    else ids = array_of(given, "ids");
  }

  Received dispatch(Buffer& buffer, const DispatchInput& input, const DispatchOptions& options) const {
    if (plan != nullptr) return buffer.dispatch(*plan, input, options);
    if (handle != nullptr) return buffer.dispatch(*handle, input, options);
    return buffer.dispatch(ids.view, input, options);
  }
};

}  // namespace heddle::python
