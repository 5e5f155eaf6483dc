#include "inputs.hpp"

#include <heddle/error.hpp>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

namespace heddle::python {
namespace {

bool is_sequence(nb::handle object) { return nb::isinstance<nb::tuple>(object) || nb::isinstance<nb::list>(object); }

/// The i-th of up to two biases, or None.
nb::object bias_of(nb::handle bias, size_t i) {
  if (!is_sequence(bias)) return i == 0 ? nb::borrow(bias) : nb::none();
  const size_t count = nb::len(bias);
  HEDDLE_CHECK(count <= 2, "bias has {} tensors, legal: 1 or 2", count);
  return i < count ? nb::object(bias[i]) : nb::none();
}

}  // namespace

DispatchArrays::DispatchArrays(nb::handle x_in, const Name& dtype, nb::handle scales_in, nb::handle weights_in,
                               nb::handle global_scale_in, nb::handle counts_in, nb::handle waits_in,
                               nb::handle ready_in)
    : x(dense_array_of(x_in, "x", Dense::rows, dtype)), scales(array_of(scales_in, "scales")),
      weights(dense_array_of(weights_in, "weights", Dense::all)),
      global_scale(scalar_of(global_scale_in, "global_scale")), counts(writable_array_of(counts_in, "counts_total")),
      waits(writable_array_of(waits_in, "waits_total")), ready(writable_array_of(ready_in, "expert_ready")) {}

CombineArrays::CombineArrays(nb::handle x_in, const Name& dtype, const Name& result, nb::handle bias,
                             nb::handle row_weights_in, nb::handle weights_in, nb::handle out_in,
                             nb::handle waits_in)
    : x(dense_array_of(x_in, "x", Dense::rows, dtype)),
      bias0(dense_array_of(bias_of(bias, 0), "bias", Dense::all, result)),
      bias1(dense_array_of(bias_of(bias, 1), "bias", Dense::all, result)),
      row_weights(dense_array_of(row_weights_in, "row_weights", Dense::all)),
      weights(dense_array_of(weights_in, "weights", Dense::all)), out(writable_array_of(out_in, "out", result)),
      waits(writable_array_of(waits_in, "waits_total")) {}

}  // namespace heddle::python
