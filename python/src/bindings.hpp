// The parts of heddle._core; each adds its classes to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace heddle::python {

namespace nb = nanobind;

void bind_errors(nb::module_&);
void bind_bootstrap(nb::module_&);
void bind_plan(nb::module_&);
void bind_results(nb::module_&);
void bind_metrics(nb::module_&);
void bind_options(nb::module_&);
void bind_buffer(nb::module_&);
void bind_known_calls(nb::module_&);
void bind_spec(nb::module_&);

}  // namespace heddle::python
