// Dispatches as deep_ep makes them, of torch's tensors: one call from Python hands out all of them, and a low-latency one plans as
// well. Of a call of a few rows, what it costs Python is most.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "blocking.hpp"
#include "calls.hpp"
#include "inputs.hpp"
#include "refusal.hpp"
#include "route.hpp"
#include "sent.hpp"
#include "tensor.hpp"
#include "torch_placement.hpp"

namespace heddle::python {
namespace {

struct SlabArrays {
  Array ids;
  DispatchArrays rows;

  SlabArrays(nb::handle ids_in, nb::handle x, nb::handle scales, nb::handle weights, nb::handle global_scale,
             nb::handle counts, nb::handle waits, nb::handle ready)
      : ids(array_of(ids_in, "ids")), rows(x, std::nullopt, scales, weights, global_scale, counts, waits, ready) {}
};

/// Options of a call that hands out few tensors, where it runs.
DispatchOptions quick(const OwnBuffer& own, const DispatchOptions& options) {
  DispatchOptions all = placed_by_torch(own, options);
  all.few_outputs = true;
  return all;
}

/// A tensor of a value for each place of the slab, as [L, R M].
nb::object by_place(Tensor tensor, const Received& received) {
  const int64_t experts = received.x.view.dim(0), places = received.x.view.dim(1);
  const nb::object own = foreign_array(tensor);
  if (!own.is_none()) return own.attr("view")(experts, places);
  tensor.view.shape = {experts, places};
  return exported(tensor, true);
}

/// (x, scales, num_per_expert, row_token, layout_range, weights, row_source, handle), those by place as [L, R M]; what came
/// without weights has neither them nor sources.
nb::tuple outputs_of(const Received& received, bool has_weights) {
  const auto with_weights = [&](const Tensor& tensor) {
    return has_weights ? by_place(tensor, received) : nb::none();
  };
  return nb::make_tuple(exported(received.x, true), exported(received.scales, true),
                        exported(received.num_per_expert, true), exported(received.row_token, true),
                        exported(received.layout_range, true), with_weights(received.weights),
                        with_weights(received.row_source), received.handle);
}

nb::tuple dispatch_slab(OwnBuffer& own, nb::handle ids, nb::handle x, nb::handle scales, nb::handle weights,
                        nb::handle global_scale, nb::handle counts, nb::handle waits, nb::handle ready,
                        const DispatchOptions& options) {
  const auto arrays = arrays_or_refusal<SlabArrays>(own, &Buffer::refuse_dispatch, ids, x, scales, weights, global_scale,
                                                    counts, waits, ready);
  const DispatchOptions all = quick(own, options);
  const Received received = blocking(own.get(), [&](Buffer& buffer) {
    return buffer.dispatch(arrays.ids.view, arrays.rows.input(), all);
  });
  return outputs_of(received, !weights.is_none());
}

/// (outputs, what receives).
nb::tuple dispatch_slab_send(OwnBuffer& own, nb::handle ids, nb::handle x, nb::handle scales, nb::handle weights,
                             nb::handle global_scale, nb::handle counts, nb::handle waits, nb::handle ready,
                             const DispatchOptions& options) {
  auto arrays = arrays_or_refusal<SlabArrays>(own, &Buffer::refuse_dispatch, ids, x, scales, weights, global_scale, counts,
                                              waits, ready);
  const DispatchOptions all = quick(own, options);
  auto split = blocking(own.get(), [&](Buffer& buffer) {
    return buffer.dispatch_send(arrays.ids.view, arrays.rows.input(), all);
  });
  const nb::tuple outputs = outputs_of(*split.result, !weights.is_none());
  return nb::make_tuple(outputs, Sent<Received>(own, std::move(split), std::make_shared<SlabArrays>(std::move(arrays))));
}

/// (num_tokens_per_rank, num_tokens_per_expert, is_token_in_rank as bytes) of a plan. Local.
nb::tuple reach(OwnBuffer& own, nb::handle ids) {
  const Array array = array_of(ids, "ids");
  const Placement on = placed_by_torch(own, DispatchOptions{}).on;
  const Reach made = blocking(own.get(), [&](Buffer& buffer) { return buffer.reach(array.view, on); });
  return nb::make_tuple(exported(made.tokens_per_rank, true), exported(made.tokens_per_expert, true),
                        exported(made.in_rank, true));
}

/// [R, R], all columns the same: tokens received from ranks 0 to i.
TensorView ends_of(const Handle& handle) {
  TensorView view = handle.recv_offset();
  const int64_t ranks = view.shape[0] - 1;
  view.data = static_cast<int32_t*>(view.data) + 1;
  view.shape = {ranks, ranks};
  view.strides = {1, 0};
  return view;
}

/// (x, scales, ids, weights, counts, ends, recv_token, source_tokens, recv_ids, ids of the plan, handle); the last but
/// one are those of a handle, and None without expert ids.
nb::tuple dispatch_tokens(OwnBuffer& own, nb::handle by, nb::handle x, nb::handle scales, nb::handle weights,
                          const DispatchOptions& options) {
  const auto route = arrays_or_refusal<Route>(own, &Buffer::refuse_dispatch, by);
  const auto arrays =
      arrays_or_refusal<DispatchArrays>(own, &Buffer::refuse_dispatch, x, Name(), scales, weights, nb::none(),
                                        nb::none(), nb::none(), nb::none());
  const DispatchOptions all = quick(own, options);
  const Received got = blocking(own.get(), [&](Buffer& buffer) { return route.dispatch(buffer, arrays.input(), all); });
  const auto of_route = [&](const TensorView& view) { return exported(kept(view, got.handle), true); };
  const Plan plan = got.handle.plan();
  const bool has_ids = plan.topk() > 0;
  return nb::make_tuple(exported(got.x, true), exported(got.scales, true), exported(got.ids, true),
                        exported(got.weights, true), nb::cast(got.counts),
                        of_route(ends_of(got.handle)), of_route(got.handle.recv_token()),
                        of_route(got.handle.source_tokens()), has_ids ? of_route(got.handle.recv_ids()) : nb::none(),
                        has_ids ? of_route(plan.ids()) : nb::none(), got.handle);
}

/// (x, scales) along the way of an earlier dispatch.
nb::tuple dispatch_rows(OwnBuffer& own, const Handle& handle, nb::handle x, nb::handle scales,
                        const DispatchOptions& options) {
  const auto arrays =
      arrays_or_refusal<DispatchArrays>(own, &Buffer::refuse_dispatch, x, Name(), scales, nb::none(), nb::none(),
                                        nb::none(), nb::none(), nb::none());
  const DispatchOptions all = quick(own, options);
  const Received got = blocking(own.get(), [&](Buffer& buffer) { return buffer.dispatch(handle, arrays.input(), all); });
  return nb::make_tuple(exported(got.x, true), exported(got.scales, true));
}

}  // namespace

void bind_quick_dispatches(nb::class_<OwnBuffer>& buffer) {
  const auto bind = [&](const char* name, auto call) {
    buffer.def(name, call, nb::arg("ids").none(), nb::arg("x").none(), nb::arg("scales").none(),
               nb::arg("weights").none(), nb::arg("global_scale").none(), nb::arg("counts_total").none(),
               nb::arg("waits_total").none(), nb::arg("expert_ready").none(), nb::arg("options"));
  };
  bind("dispatch_slab", &dispatch_slab);
  bind("dispatch_slab_send", &dispatch_slab_send);
  buffer.def("dispatch_rows", &dispatch_rows, nb::arg("handle"), nb::arg("x").none(), nb::arg("scales").none(),
             nb::arg("options"));
  buffer.def("reach", &reach, nb::arg("ids").none());
  buffer.def("dispatch_tokens", &dispatch_tokens, nb::arg("by").none(), nb::arg("x").none(), nb::arg("scales").none(),
             nb::arg("weights").none(), nb::arg("options"));
}

}  // namespace heddle::python
