#include "calls.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>

#include "blocking.hpp"
#include "inputs.hpp"
#include "placement.hpp"
#include "refusal.hpp"
#include "route.hpp"
#include "sent.hpp"

namespace heddle::python {
namespace {

using Stream = std::optional<uintptr_t>;

Received dispatch(OwnBuffer& own, nb::handle given, nb::handle x, nb::handle scales, nb::handle weights,
                  nb::handle global_scale, nb::handle counts, nb::handle waits, nb::handle ready, const Name& dtype,
                  const DispatchOptions& options, Stream stream, int num_sms) {
  const auto route = arrays_or_refusal<Route>(own, &Buffer::refuse_dispatch, given);
  const auto arrays = arrays_or_refusal<DispatchArrays>(own, &Buffer::refuse_dispatch, x, dtype, scales, weights,
                                                        global_scale, counts, waits, ready);
  const DispatchOptions all = placed(options, stream, num_sms);
  return blocking(own.get(), [&](Buffer& buffer) { return route.dispatch(buffer, arrays.input(), all); });
}

/// By a plan or ids, which its caller has looked at.
Sent<Received> dispatch_send(OwnBuffer& own, nb::handle given, nb::handle x, nb::handle scales, nb::handle weights,
                             nb::handle global_scale, nb::handle counts, nb::handle waits, nb::handle ready, const Name& dtype,
                             const DispatchOptions& options, Stream stream, int num_sms) {
  const auto route = arrays_or_refusal<Route>(own, &Buffer::refuse_dispatch, given);
  auto arrays = arrays_or_refusal<DispatchArrays>(own, &Buffer::refuse_dispatch, x, dtype, scales, weights, global_scale,
                                                  counts, waits, ready);
  const DispatchOptions all = placed(options, stream, num_sms);
  auto split = blocking(own.get(), [&](Buffer& buffer) {
    return route.plan != nullptr ? buffer.dispatch_send(*route.plan, arrays.input(), all)
                                 : buffer.dispatch_send(route.ids.view, arrays.input(), all);
  });
  return {own, std::move(split), std::make_shared<DispatchArrays>(std::move(arrays))};
}

/// The arrays of a combine, and its options with the caller's output.
struct CombineCall {
  CombineArrays arrays;
  CombineOptions options;

  CombineCall(OwnBuffer& own, nb::handle x, nb::handle bias, nb::handle row_weights, nb::handle weights, nb::handle out,
              nb::handle waits, const Name& dtype, const CombineOptions& given, Stream stream, int num_sms)
      : arrays(arrays_or_refusal<CombineArrays>(own, &Buffer::refuse_combine, x, dtype, result_of(dtype, given), bias,
                                                row_weights, weights, out, waits)),
        options(placed(given, stream, num_sms)) {
    options.out = arrays.out.view;
  }

  /// Biases and output have the result's type, which without out_dtype is x's.
  static Name result_of(const Name& dtype, const CombineOptions& options) {
    return options.out_dtype ? Name(name_of(*options.out_dtype)) : dtype;
  }
};

Combined combine(OwnBuffer& own, const Handle& handle, nb::handle x, nb::handle bias, nb::handle row_weights,
                 nb::handle weights, nb::handle out, nb::handle waits, const Name& dtype, const CombineOptions& options,
                 Stream stream, int num_sms) {
  const CombineCall call(own, x, bias, row_weights, weights, out, waits, dtype, options, stream, num_sms);
  return blocking(own.get(), [&](Buffer& buffer) { return buffer.combine(handle, call.arrays.input(), call.options); });
}

Sent<Combined> combine_send(OwnBuffer& own, const Handle& handle, nb::handle x, nb::handle bias, nb::handle row_weights,
                            nb::handle weights, nb::handle out, nb::handle waits, const Name& dtype,
                            const CombineOptions& options, Stream stream, int num_sms) {
  auto call = std::make_shared<CombineCall>(own, x, bias, row_weights, weights, out, waits, dtype, options, stream, num_sms);
  auto split = blocking(
      own.get(), [&](Buffer& buffer) { return buffer.combine_send(handle, call->arrays.input(), call->options); });
  return {own, std::move(split), std::move(call)};
}

}  // namespace

void bind_calls(nb::class_<OwnBuffer>& buffer) {
  const auto bind_dispatch = [&](const char* name, auto call) {
    buffer.def(name, call, nb::arg("route"), nb::arg("x").none(), nb::arg("scales").none(), nb::arg("weights").none(),
               nb::arg("global_scale").none(), nb::arg("counts_total").none(), nb::arg("waits_total").none(),
               nb::arg("expert_ready").none(), nb::arg("dtype").none(), nb::arg("options"), nb::arg("stream").none(), nb::arg("num_sms"));
  };
  const auto bind_combine = [&](const char* name, auto call) {
    buffer.def(name, call, nb::arg("handle"), nb::arg("x").none(), nb::arg("bias").none(),
               nb::arg("row_weights").none(), nb::arg("weights").none(), nb::arg("out").none(),
               nb::arg("waits_total").none(), nb::arg("dtype").none(), nb::arg("options"), nb::arg("stream").none(),
               nb::arg("num_sms"));
  };
  bind_dispatch("dispatch", &dispatch);
  bind_dispatch("dispatch_send", &dispatch_send);
  bind_combine("combine", &combine);
  bind_combine("combine_send", &combine_send);
}

}  // namespace heddle::python
