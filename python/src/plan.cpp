// Plan and Handle: routes. Their tensors share the route's memory.
#include <heddle/buffer.hpp>

#include "tensor.hpp"

namespace heddle::python {
namespace {

/// A method whose tensor keeps its plan or handle alive.
template <class Route, class Get>
auto tensor_of(Get get) {
  return [get](const Route& route, bool torch) { return exported(kept((route.*get)(), route), torch); };
}

/// What a handle can be made from again, each keeping it alive.
nb::tuple tensors_of(const Handle& handle, bool torch) {
  const auto one = [&](const TensorView& view) { return exported(kept(view, handle), torch); };
  return nb::make_tuple(one(handle.recv_offset()), one(handle.recv_token()), one(handle.source_tokens()),
                        one(handle.recv_ids()));
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<Plan>(m, "Plan")
      .def_prop_ro("tokens", &Plan::tokens)
      .def_prop_ro("topk", &Plan::topk)
      .def("ids", tensor_of<Plan>(&Plan::ids))
      .def("is_token_in_rank", tensor_of<Plan>(&Plan::is_token_in_rank))
      .def("num_tokens_per_rank", tensor_of<Plan>(&Plan::num_tokens_per_rank))
      .def("num_tokens_per_expert", tensor_of<Plan>(&Plan::num_tokens_per_expert))
      .def("num_rows_per_expert", tensor_of<Plan>(&Plan::num_rows_per_expert));
  nb::class_<Handle>(m, "Handle")
      .def_prop_ro("plan", &Handle::plan)
      .def("tensors", &tensors_of)
      .def("recv_offset", tensor_of<Handle>(&Handle::recv_offset))
      .def("recv_token", tensor_of<Handle>(&Handle::recv_token))
      .def("source_tokens", tensor_of<Handle>(&Handle::source_tokens))
      .def("row_of", tensor_of<Handle>(&Handle::row_of))
      .def("recv_ids", tensor_of<Handle>(&Handle::recv_ids))
      .def("recv_weights", tensor_of<Handle>(&Handle::recv_weights))
      .def("status", tensor_of<Handle>(&Handle::status))
      .def_prop_ro("num_received", &Handle::num_received);
}

}  // namespace heddle::python
