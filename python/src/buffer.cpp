// Buffer as python/heddle/buffer.py uses it; what users see is documented there.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "array.hpp"
#include "blocking.hpp"
#include "calls.hpp"
#include "own_buffer.hpp"
#include "placement.hpp"
#include "seconds.hpp"
#include "tensor.hpp"
#include "torch_memory.hpp"

namespace heddle::python {
namespace {

void make_config(Config* config, int experts, int max_tokens, int64_t window_bytes, double timeout,
                 bool mask_late_peers, int threads, std::optional<int> gpu, bool pinned_windows, int64_t heap_bytes,
                 int num_sms, std::vector<std::pair<int, int>> pinned_pairs) {
  new (config) Config{.experts = experts,
                      .max_tokens = max_tokens,
                      .window_bytes = window_bytes,
                      .timeout = nanoseconds(timeout, "timeout"),
                      .mask_late_peers = mask_late_peers,
                      .threads = threads,
                      .device = gpu ? Device{DeviceKind::cuda, *gpu} : Device{},
                      .pinned_windows = pinned_windows,
                      .pinned_pairs = std::move(pinned_pairs),
                      .heap_bytes = heap_bytes,
                      .num_sms = num_sms};
}

class HeapScope {
 public:
  explicit HeapScope(Buffer& buffer) : buffer_(&buffer) {}
  void enter() { chosen_ = buffer_->use_heap(); }
  void leave(nb::handle, nb::handle, nb::handle) { chosen_.reset(); }

 private:
  Buffer* buffer_;
  std::shared_ptr<void> chosen_;
};

void make_buffer(OwnBuffer* own, std::shared_ptr<Bootstrap> bootstrap, const Config& config) {
  const WithoutGil released;
  new (own) OwnBuffer(std::move(bootstrap), config);
}

using Stream = std::optional<uintptr_t>;

Plan plan(OwnBuffer& own, nb::handle ids, Stream stream, int num_sms) {
  const Array array = array_of(ids, "ids");
  return blocking(own.get(), [&](Buffer& buffer) { return buffer.plan(array.view, placement(stream, num_sms)); });
}

Plan plan_from_rank_map(OwnBuffer& own, nb::handle map, Stream stream, int num_sms) {
  const Array array = array_of(map, "is_token_in_rank");
  return blocking(own.get(),
                  [&](Buffer& buffer) { return buffer.plan_from_rank_map(array.view, placement(stream, num_sms)); });
}

Handle handle(OwnBuffer& own, const Plan& plan, nb::handle recv_offset, nb::handle recv_token, nb::handle source_tokens,
              nb::handle recv_ids, Stream stream) {
  const Array offset = dense_array_of(recv_offset, "recv_offset", Dense::all);
  const Array token = dense_array_of(recv_token, "recv_token", Dense::all);
  const Array tokens = dense_array_of(source_tokens, "source_tokens", Dense::all);
  const Array ids = dense_array_of(recv_ids, "recv_ids", Dense::all);
  return blocking(own.get(), [&](Buffer& buffer) {
    return buffer.handle(plan, {offset.view, token.view, tokens.view, ids.view}, placement(stream, 0));
  });
}

/// Destroying what a parent process built would take it away from the parent's peers.
void destroy(OwnBuffer& own) {
  if (!own.is_foreign()) blocking(own.get(), [&](Buffer& buffer) { buffer.destroy(); });
}

}  // namespace

void bind_buffer(nb::module_& m) {
  nb::class_<Config>(m, "Config")
      .def("__init__", &make_config, nb::kw_only(), nb::arg("experts"), nb::arg("max_tokens"), nb::arg("window_bytes"),
           nb::arg("timeout"), nb::arg("mask_late_peers"), nb::arg("threads"), nb::arg("gpu").none() = nb::none(),
           nb::arg("pinned_windows") = false, nb::arg("heap_bytes") = 0, nb::arg("num_sms") = 0,
           nb::arg("pinned_pairs") = std::vector<std::pair<int, int>>{});
  nb::class_<HeapScope>(m, "HeapScope", "Within it, heddle_heap_malloc gives this thread memory of the buffer's heap.")
      .def("__enter__", &HeapScope::enter)
      .def("__exit__", &HeapScope::leave, nb::arg("kind").none(), nb::arg("error").none(), nb::arg("at").none());
  m.def("predicted_bytes", &predicted_bytes, nb::arg("config"), nb::arg("ranks"));
  nb::class_<OwnBuffer> type(m, "Buffer");
  bind_calls(type);
  bind_quick_dispatches(type);
  bind_quick_combines(type);
  type.def("__init__", &make_buffer, nb::arg("bootstrap"), nb::arg("config"))
      .def_prop_ro("rank", [](const OwnBuffer& own) { return own.get().topology().rank; })
      .def_prop_ro("size", [](const OwnBuffer& own) { return own.get().topology().world; })
      .def("first_expert", [](const OwnBuffer& own, int rank) { return own.get().topology().first_expert(rank); })
      .def_prop_ro("windows", [](const OwnBuffer& own) { return own.get().windows(); })
      .def_prop_ro("paths", [](const OwnBuffer& own) { return own.get().paths(); })
      .def_prop_ro("num_sms", [](const OwnBuffer& own) { return own.get().config().num_sms; })
      .def("plan", &plan, nb::arg("ids"), nb::arg("stream").none() = nb::none(), nb::arg("num_sms") = 0)
      .def("plan_from_rank_map", &plan_from_rank_map, nb::arg("is_token_in_rank"),
           nb::arg("stream").none() = nb::none(), nb::arg("num_sms") = 0)
      .def("handle", &handle, nb::arg("plan"), nb::arg("recv_offset"), nb::arg("recv_token"), nb::arg("source_tokens"),
           nb::arg("recv_ids"), nb::arg("stream").none() = nb::none())
      .def("refuse_dispatch",
           [](OwnBuffer& own, const std::string& argument) {
             blocking(own.get(), [&](Buffer& buffer) { buffer.refuse_dispatch(argument); });
           })
      .def("refuse_combine",
           [](OwnBuffer& own, const std::string& argument) {
             blocking(own.get(), [&](Buffer& buffer) { buffer.refuse_combine(argument); });
           })
      .def("mask", [](OwnBuffer& own, int rank) { blocking(own.get(), [&](Buffer& buffer) { buffer.mask(rank); }); })
      .def("masked",
           [](OwnBuffer& own) { return blocking(own.get(), [&](Buffer& buffer) { return buffer.masked(); }); })
      .def("reset",
           [](OwnBuffer& own, const std::vector<int>& members) {
             blocking(own.get(), [&](Buffer& buffer) { buffer.reset(members); });
           })
      .def("destroy", &destroy)
      .def("interrupt",
           [](OwnBuffer& own) {
             if (!own.is_foreign()) own.get().interrupt();
           })
      .def_prop_ro("is_destroyed", [](const OwnBuffer& own) { return own.get().is_destroyed(); })
      .def_prop_ro("has_heap", [](const OwnBuffer& own) { return own.get().has_heap(); })
      .def(
          "use_heap", [](OwnBuffer& own) { return HeapScope(own.get()); }, nb::keep_alive<0, 1>())
      .def(
          "set_torch_allocator",
          [](OwnBuffer& own, nb::object make) {
            Allocate allocate = torch_allocator_of(std::move(make), own.get().config().device);
            blocking(own.get(), [&](Buffer& buffer) { buffer.set_allocator(std::move(allocate)); });
          },
          nb::arg("make").none())
      .def("set_allocator",
           [](OwnBuffer& own, nb::callable make) {
             Allocate allocate = allocator_of(std::move(make));
             blocking(own.get(), [&](Buffer& buffer) { buffer.set_allocator(std::move(allocate)); });
           })
      .def("metrics",
           [](OwnBuffer& own) { return blocking(own.get(), [&](Buffer& buffer) { return buffer.metrics(); }); });
}

}  // namespace heddle::python
