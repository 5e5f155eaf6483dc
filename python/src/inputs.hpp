// The arrays of a call, kept alive for it.
#pragma once

#include <heddle/buffer.hpp>

#include "array.hpp"

namespace heddle::python {

struct DispatchArrays {
  Array x, scales, weights, global_scale;

  DispatchInput input() const {
    return {.x = x.view, .scales = scales.view, .weights = weights.view, .global_scale = global_scale.view};
  }
};

struct CombineArrays {
  Array x, bias0, bias1, row_weights, weights, out;

  CombineInput input() const {
    return {.x = x.view,
            .bias0 = bias0.view,
            .bias1 = bias1.view,
            .row_weights = row_weights.view,
            .weights = weights.view};
  }
};

}  // namespace heddle::python
