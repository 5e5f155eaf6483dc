// Counters of a buffer.
#include <heddle/metrics.hpp>

#include "bindings.hpp"

namespace heddle::python {

void bind_metrics(nb::module_& m) {
  nb::class_<OperationMetrics>(m, "OperationMetrics", "Counters of dispatch or combine.")
      .def_ro("calls", &OperationMetrics::calls)
      .def_ro("rows_sent", &OperationMetrics::rows_sent, "To all ranks, this one included.")
      .def_ro("rows_received", &OperationMetrics::rows_received)
      .def_ro("rows_in_place", &OperationMetrics::rows_in_place,
              "Of those, the ones that their senders wrote into the output itself.")
      .def_ro("bytes_sent", &OperationMetrics::bytes_sent, "Rows as they travel, to other ranks only.")
      .def_ro("rounds", &OperationMetrics::rounds, "Of the slowest pair, summed over calls.")
      .def_ro("nanoseconds", &OperationMetrics::nanoseconds, "In calls, waiting included.");
  nb::class_<Metrics>(m, "Metrics", "What a buffer has done since it was made.")
      .def_ro("dispatch", &Metrics::dispatch)
      .def_ro("combine", &Metrics::combine)
      .def_ro("plans", &Metrics::plans)
      .def_ro("refusals", &Metrics::refusals, "Calls that this rank refused.")
      .def_ro("faults", &Metrics::faults)
      .def_ro("resets", &Metrics::resets)
      .def_ro("waiting_nanoseconds", &Metrics::waiting_nanoseconds,
              "Of the calling thread for steps on a GPU, such as an exact dispatch's headers.");
}

}  // namespace heddle::python
