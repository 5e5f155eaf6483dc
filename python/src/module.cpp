// heddle._core: the C++ API for python/heddle, which is what users import. Importing it starts no thread and touches no device.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings.hpp"
#include "exchange.hpp"
#include "memory/cuda_devices.hpp"
#include "memory/cuda_vmm.hpp"

NB_MODULE(_core, m) {
  using namespace heddle::python;
  using heddle::cuda_problem;
  nb::set_leak_warnings(false);  // a buffer that lives until the interpreter ends is no fault
  m.attr("version") = std::string(HEDDLE_VERSION);
  nb::dict features;  // what this build has, for `heddle doctor`
  features["cuda"] = HEDDLE_HAS_CUDA != 0;
  features["fabric"] = HEDDLE_HAS_FABRIC != 0;
  m.attr("features") = features;
  m.def("cuda_problem", &cuda_problem, "Why no GPU can be used here; empty: one can. The first call asks the driver.");
  m.def("num_gpus", [] { return heddle::list_cuda_devices().size(); });
  m.def("torch_stream", &torch_stream, "torch's current stream of a GPU, as a number.");
  bind_errors(m);
  bind_bootstrap(m);
  bind_plan(m);
  bind_results(m);
  bind_metrics(m);
  bind_options(m);
  bind_buffer(m);
  bind_known_calls(m);
  bind_spec(m);
}
