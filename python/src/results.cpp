// What calls return, and the halves of split calls.
#include <heddle/buffer.hpp>

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "blocking.hpp"
#include "own_buffer.hpp"
#include "tensor.hpp"

namespace heddle::python {
namespace {

template <class Result>
auto field(Tensor Result::* member) {
  return [member](const Result& result) { return exported(result.*member); };
}

template <class Result>
void bind_split(nb::module_& m, const char* name) {
  nb::class_<Split<Result>>(m, name)
      .def_prop_ro("result", [](const Split<Result>& split) { return std::const_pointer_cast<Result>(split.result); })
      .def("receive",
           [](Split<Result>& split, OwnBuffer& own) { blocking(own.get(), [&](Buffer&) { split.receive(); }); });
}

}  // namespace

void bind_results(nb::module_& m) {
  nb::class_<Received>(m, "Received")
      .def_prop_ro("x", field(&Received::x))
      .def_prop_ro("scales", field(&Received::scales))
      .def_prop_ro("ids", field(&Received::ids))
      .def_prop_ro("weights", field(&Received::weights))
      .def_prop_ro("num_per_expert", field(&Received::num_per_expert))
      .def_prop_ro("expert_offsets", field(&Received::expert_offsets))
      .def_prop_ro("row_source", field(&Received::row_source))
      .def_prop_ro("row_token", field(&Received::row_token))
      .def_prop_ro("layout_range", field(&Received::layout_range))
      .def_prop_ro("dropped", field(&Received::dropped))
      .def_ro("masked", &Received::masked)
      .def_ro("num_dropped", &Received::num_dropped)
      .def_ro("num_rows", &Received::num_rows)
      .def_ro("handle", &Received::handle);
  nb::class_<Combined>(m, "Combined")
      .def_prop_ro("x", field(&Combined::x))
      .def_prop_ro("weights", field(&Combined::weights))
      .def_ro("masked", &Combined::masked);
  bind_split<Received>(m, "SplitReceived");
  bind_split<Combined>(m, "SplitCombined");
}

}  // namespace heddle::python
