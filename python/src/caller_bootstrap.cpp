#include "caller_bootstrap.hpp"

#include <heddle/error.hpp>
#include <heddle/ranks.hpp>

namespace heddle::python {
namespace {

Bytes bytes_of(nb::handle item) {
  HEDDLE_CHECK(nb::isinstance<nb::bytes>(item), "the caller's all-gather returned a {}, wanted bytes of every rank",
               nb::type_name(item.type()).c_str());
  const auto bytes = nb::borrow<nb::bytes>(item);
  const auto* begin = static_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

/// Called, copied and dropped by threads that do not hold the GIL.
struct PythonAllGather {
  std::shared_ptr<nb::callable> function;

  std::vector<Bytes> operator()(const Bytes& mine) const {
    const nb::gil_scoped_acquire gil;
    const nb::object gathered = (*function)(nb::bytes(mine.data(), mine.size()));
    std::vector<Bytes> all;
    for (nb::handle item : nb::iter(gathered)) all.push_back(bytes_of(item));
    return all;
  }
};

/// After the interpreter's end there is nobody to give the function back to.
void drop(nb::callable* function) {
  if (!nb::is_alive()) return;
  const nb::gil_scoped_acquire gil;
  delete function;
}

}  // namespace

std::unique_ptr<Bootstrap> caller_bootstrap(int rank, int size, nb::callable all_gather) {
  return callable(rank, size, PythonAllGather{{new nb::callable(std::move(all_gather)), drop}});
}

}  // namespace heddle::python
