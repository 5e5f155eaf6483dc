// Plan and Handle: routes. Their tensors share the route's memory.
#include <heddle/buffer.hpp>

#include "tensor.hpp"

namespace heddle::python {
namespace {

/// A property whose tensor keeps its plan or handle alive.
template <class Route, class Get>
auto tensor_of(Get get) {
  return [get](const Route& route) { return exported(kept((route.*get)(), route)); };
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<Plan>(m, "Plan")
      .def_prop_ro("tokens", &Plan::tokens)
      .def_prop_ro("topk", &Plan::topk)
      .def_prop_ro("ids", tensor_of<Plan>(&Plan::ids))
      .def_prop_ro("is_token_in_rank", tensor_of<Plan>(&Plan::is_token_in_rank))
      .def_prop_ro("num_tokens_per_rank", tensor_of<Plan>(&Plan::num_tokens_per_rank))
      .def_prop_ro("num_tokens_per_expert", tensor_of<Plan>(&Plan::num_tokens_per_expert))
      .def_prop_ro("num_rows_per_expert", tensor_of<Plan>(&Plan::num_rows_per_expert));
  nb::class_<Handle>(m, "Handle")
      .def_prop_ro("plan", &Handle::plan)
      .def_prop_ro("recv_offset", tensor_of<Handle>(&Handle::recv_offset))
      .def_prop_ro("recv_token", tensor_of<Handle>(&Handle::recv_token))
      .def_prop_ro("source_tokens", tensor_of<Handle>(&Handle::source_tokens))
      .def_prop_ro("row_of", tensor_of<Handle>(&Handle::row_of))
      .def_prop_ro("recv_ids", tensor_of<Handle>(&Handle::recv_ids))
      .def_prop_ro("recv_weights", tensor_of<Handle>(&Handle::recv_weights))
      .def_prop_ro("status", tensor_of<Handle>(&Handle::status))
      .def_prop_ro("num_received", &Handle::num_received);
}

}  // namespace heddle::python
