// Combines as deep_ep makes them: of torch's tensors, with the usual options, by one call from Python.
#include <nanobind/stl/optional.h>

#include "blocking.hpp"
#include "calls.hpp"
#include "inputs.hpp"
#include "refusal.hpp"
#include "sent.hpp"
#include "tensor.hpp"
#include "torch_placement.hpp"

namespace heddle::python {
namespace {

/// (words, counts or None, rows_each, wanted).
struct SignalArrays {
  Array words, counts;
  int rows_each;
  uint32_t wanted;

  explicit SignalArrays(nb::handle given)
      : words(writable_array_of(given[0], "ready.words")), counts(array_of(given[1], "ready.counts")),
        rows_each(nb::cast<int>(given[2])), wanted(nb::cast<uint32_t>(given[3])) {}

  RowSignals signals() const {
    return {.words = words.view, .counts = counts.view, .rows_each = rows_each, .wanted = wanted};
  }
};

struct QuickCombine {
  CombineArrays arrays;
  CombineOptions options;
  nb::object out;

  std::optional<SignalArrays> ready;

  QuickCombine(OwnBuffer& own, nb::handle x, nb::handle bias, nb::handle row_weights, nb::handle weights,
               nb::handle out_in, nb::handle waits, nb::handle ready_in)
      : arrays(arrays_or_refusal<CombineArrays>(own, &Buffer::refuse_combine, x, Name(), Name(), bias, row_weights, weights,
                                                out_in, waits)),
        options(placed_by_torch(own, CombineOptions{})), out(nb::borrow(out_in)) {
    options.out = arrays.out.view;
    if (!ready_in.is_none()) ready.emplace(arrays_or_refusal<SignalArrays>(own, &Buffer::refuse_combine, ready_in));
  }

  CombineInput input() const {
    CombineInput all = arrays.input();
    if (ready) all.ready = ready->signals();
    return all;
  }

  /// (sums, the weights that came back or None).
  nb::tuple outputs_of(const Combined& combined) const {
    return nb::make_tuple(out.is_none() ? exported(combined.x, true) : out, exported(combined.weights, true));
  }
};

nb::tuple combine_rows(OwnBuffer& own, const Handle& handle, nb::handle x, nb::handle bias, nb::handle row_weights,
                       nb::handle weights, nb::handle out, nb::handle waits, nb::handle ready) {
  const QuickCombine call(own, x, bias, row_weights, weights, out, waits, ready);
  return call.outputs_of(
      blocking(own.get(), [&](Buffer& buffer) { return buffer.combine(handle, call.input(), call.options); }));
}

/// (outputs, what receives).
nb::tuple combine_rows_send(OwnBuffer& own, const Handle& handle, nb::handle x, nb::handle bias, nb::handle row_weights,
                            nb::handle weights, nb::handle out, nb::handle waits, nb::handle ready) {
  auto call = std::make_shared<QuickCombine>(own, x, bias, row_weights, weights, out, waits, ready);
  auto split =
      blocking(own.get(), [&](Buffer& buffer) { return buffer.combine_send(handle, call->input(), call->options); });
  const nb::tuple outputs = call->outputs_of(*split.result);
  return nb::make_tuple(outputs, Sent<Combined>(own, std::move(split), std::move(call)));
}

}  // namespace

void bind_quick_combines(nb::class_<OwnBuffer>& buffer) {
  const auto bind = [&](const char* name, auto call) {
    buffer.def(name, call, nb::arg("handle"), nb::arg("x").none(), nb::arg("bias").none(), nb::arg("row_weights").none(),
               nb::arg("weights").none(), nb::arg("out").none(), nb::arg("waits_total").none(), nb::arg("ready").none());
  };
  bind("combine_rows", &combine_rows);
  bind("combine_rows_send", &combine_rows_send);
}

}  // namespace heddle::python
