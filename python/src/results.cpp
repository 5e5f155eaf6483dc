// What calls return, and the halves of split calls.
#include <heddle/buffer.hpp>

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "blocking.hpp"
#include "own_buffer.hpp"
#include "sent.hpp"
#include "tensor.hpp"

namespace heddle::python {
namespace {

template <class Result>
auto field(Tensor Result::* member) {
  return [member](const Result& result, bool torch) { return exported(result.*member, torch); };
}

template <class Result>
void bind_sent(nb::module_& m, const char* name) {
  nb::class_<Sent<Result>>(m, name)
      .def_prop_ro("result", [](const Sent<Result>& sent) { return std::const_pointer_cast<Result>(sent.split.result); })
      .def("receive", [](Sent<Result>& sent, OwnBuffer& own) {
        blocking(own.get(), [&](Buffer&) { sent.split.receive(); });
        sent.arrays->reset();
      });
}

std::string describe_x(const Tensor& x) { return x.view.describe(); }
std::string dtype_of_x(const Tensor& x) { return x.is_set() ? name_of(x.view.dtype) : "unknown"; }

}  // namespace

void bind_results(nb::module_& m) {
  nb::class_<Received>(m, "Received")
      .def("x", field(&Received::x))
      .def("scales", field(&Received::scales))
      .def("ids", field(&Received::ids))
      .def("weights", field(&Received::weights))
      .def("num_per_expert", field(&Received::num_per_expert))
      .def("expert_offsets", field(&Received::expert_offsets))
      .def("row_source", field(&Received::row_source))
      .def("row_token", field(&Received::row_token))
      .def("layout_range", field(&Received::layout_range))
      .def("dropped", field(&Received::dropped))
      .def_ro("masked", &Received::masked)
      .def_ro("num_dropped", &Received::num_dropped)
      .def_ro("num_rows", &Received::num_rows)
      .def_ro("counts", &Received::counts)
      .def_prop_ro("x_dtype", [](const Received& received) { return dtype_of_x(received.x); })
      .def_prop_ro("x_says", [](const Received& received) { return describe_x(received.x); })
      .def_ro("handle", &Received::handle);
  nb::class_<Combined>(m, "Combined")
      .def("x", field(&Combined::x))
      .def("weights", field(&Combined::weights))
      .def_prop_ro("x_dtype", [](const Combined& combined) { return dtype_of_x(combined.x); })
      .def_prop_ro("x_says", [](const Combined& combined) { return describe_x(combined.x); })
      .def_ro("masked", &Combined::masked);
  bind_sent<Received>(m, "SentReceived");
  bind_sent<Combined>(m, "SentCombined");
}

}  // namespace heddle::python
