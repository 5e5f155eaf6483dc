// The arrays of a call, kept alive for it.
#pragma once

#include <heddle/buffer.hpp>

#include "array.hpp"

namespace heddle::python {

using Name = std::optional<std::string>;

struct DispatchArrays {
  Array x, scales, weights, global_scale, counts, waits, ready;

  /// As a caller passed them. Throws Error{usage} naming the one that Heddle cannot read.
  DispatchArrays(nb::handle x, const Name& dtype, nb::handle scales, nb::handle weights, nb::handle global_scale,
                 nb::handle counts, nb::handle waits, nb::handle ready);

  DispatchInput input() const {
    return {.x = x.view, .scales = scales.view, .weights = weights.view, .global_scale = global_scale.view,
            .counts_total = counts.view, .waits_total = waits.view, .expert_ready = ready.view};
  }
};

struct CombineArrays {
  Array x, bias0, bias1, row_weights, weights, out, waits;

  /// `bias` is none, one, or a tuple or list of up to two; they and `out` have the result's type.
  CombineArrays(nb::handle x, const Name& dtype, const Name& result, nb::handle bias, nb::handle row_weights,
                nb::handle weights, nb::handle out, nb::handle waits);

  CombineInput input() const {
    return {.x = x.view,
            .bias0 = bias0.view,
            .bias1 = bias1.view,
            .row_weights = row_weights.view,
            .weights = weights.view,
            .waits_total = waits.view};
  }
};

}  // namespace heddle::python
