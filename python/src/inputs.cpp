#include "inputs.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bindings.hpp"

namespace heddle::python {
namespace {

using Name = std::optional<std::string>;

void make_dispatch(DispatchArrays* arrays, nb::handle x, const Name& dtype, nb::handle scales, nb::handle weights,
                   nb::handle global_scale) {
  new (arrays) DispatchArrays{array_of(x, "x", dtype), array_of(scales, "scales"), array_of(weights, "weights"),
                              array_of(global_scale, "global_scale")};
}

/// The biases and the output have the result's type, which without out_dtype is x's.
void make_combine(CombineArrays* arrays, nb::handle x, const Name& dtype, const Name& out_dtype, nb::handle bias0,
                  nb::handle bias1, nb::handle row_weights, nb::handle weights, nb::handle out) {
  const Name result = out_dtype ? out_dtype : dtype;
  new (arrays) CombineArrays{array_of(x, "x", dtype),         array_of(bias0, "bias", result),
                             array_of(bias1, "bias", result), array_of(row_weights, "row_weights"),
                             array_of(weights, "weights"),    writable_array_of(out, "out", result)};
}

}  // namespace

void bind_inputs(nb::module_& m) {
  nb::class_<DispatchArrays>(m, "DispatchInput")
      .def("__init__", &make_dispatch, nb::kw_only(), nb::arg("x").none(), nb::arg("dtype").none(),
           nb::arg("scales").none(), nb::arg("weights").none(), nb::arg("global_scale").none());
  nb::class_<CombineArrays>(m, "CombineInput")
      .def("__init__", &make_combine, nb::kw_only(), nb::arg("x").none(), nb::arg("dtype").none(),
           nb::arg("out_dtype").none(), nb::arg("bias0").none(), nb::arg("bias1").none(), nb::arg("row_weights").none(),
           nb::arg("weights").none(), nb::arg("out").none());
}

}  // namespace heddle::python
