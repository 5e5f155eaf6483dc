// How ranks find one another. python/heddle/bootstrap.py documents it.
#include <heddle/bootstrap.hpp>
#include <heddle/ranks.hpp>

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "caller_bootstrap.hpp"
#include "seconds.hpp"
#include "without_gil.hpp"

namespace heddle::python {
namespace {

using Shared = std::shared_ptr<Bootstrap>;

std::vector<Shared> make_in_process(int size, double timeout) {
  std::vector<Shared> all;
  for (auto& one : in_process(size, nanoseconds(timeout, "timeout"))) all.push_back(std::move(one));
  return all;
}

Shared make_tcp(int rank, int size, const std::string& host, uint16_t port, const std::string& secret, int listener,
                double timeout) {
  const TcpGroup group{.rank = rank,
                       .size = size,
                       .host = host,
                       .port = port,
                       .secret = secret,
                       .listener = {.descriptor = listener, .port = port},
                       .deadline = nanoseconds(timeout, "timeout")};
  const WithoutGil released;
  return tcp_store(group);
}

nb::tuple listen(const std::string& host, uint16_t port) {
  const TcpListener listener = tcp_listen(host, port);
  return nb::make_tuple(listener.descriptor, listener.port);
}

nb::list all_gather(Bootstrap& bootstrap, const nb::bytes& mine, const std::string& operation) {
  const auto* bytes = static_cast<const std::byte*>(mine.data());
  std::vector<Bytes> all;
  {
    const WithoutGil released;
    all = bootstrap.all_gather({bytes, mine.size()}, operation);
  }
  nb::list list;
  for (const Bytes& one : all) list.append(nb::bytes(one.data(), one.size()));
  return list;
}

}  // namespace

void bind_bootstrap(nb::module_& m) {
  nb::class_<Bootstrap>(m, "Bootstrap", nb::dynamic_attr(), nb::is_weak_referenceable(),
                        "A group of ranks: rank, size and an all-gather. Collective, in the same order everywhere.")
      .def_prop_ro("rank", &Bootstrap::rank)
      .def_prop_ro("size", &Bootstrap::size)
      .def("all_gather", &all_gather, nb::arg("mine"), nb::arg("operation") = "all_gather",
           "Every rank's bytes, by rank. Collective. Raises TimeoutError_ naming the ranks that did not come.")
      .def(
          "barrier", [](Bootstrap& bootstrap, const std::string& operation) { bootstrap.barrier(operation); },
          nb::arg("operation") = "barrier", nb::call_guard<WithoutGil>(),
          "Returns when every rank has called it. Collective.");
  m.def("in_process", &make_in_process, nb::arg("size"), nb::arg("timeout"));
  m.def("tcp", &make_tcp, nb::kw_only(), nb::arg("rank"), nb::arg("size"), nb::arg("host"), nb::arg("port"),
        nb::arg("secret"), nb::arg("listener"), nb::arg("timeout"));
  m.def("tcp_listen", &listen, nb::arg("host"), nb::arg("port"));
  m.def("make_secret", &make_secret);
  m.def(
      "caller_bootstrap",
      [](int rank, int size, nb::callable fn) { return Shared(caller_bootstrap(rank, size, std::move(fn))); },
      nb::arg("rank"), nb::arg("size"), nb::arg("all_gather"));
}

}  // namespace heddle::python
