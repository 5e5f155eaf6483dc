// The calls of a Buffer that move rows.
#pragma once

#include "bindings.hpp"
#include "own_buffer.hpp"

namespace heddle::python {

void bind_calls(nb::class_<OwnBuffer>&);
void bind_quick_dispatches(nb::class_<OwnBuffer>&);
void bind_quick_combines(nb::class_<OwnBuffer>&);

}  // namespace heddle::python
