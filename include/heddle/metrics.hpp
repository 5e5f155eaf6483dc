// What a buffer has done since it was made.
#pragma once

#include <cstdint>

namespace heddle {

/// Of calls whose sizes the host knows: rows of a fixed-size dispatch on a GPU's stream are counted nowhere.
struct OperationMetrics {
  uint64_t calls = 0;
  uint64_t rows_sent = 0;       // to all ranks, this one included
  uint64_t rows_received = 0;
  uint64_t rows_in_place = 0;   // of those, the ones that their senders wrote into the output itself; on a GPU's stream,
                                // where the host does not wait for the end, those that they were offered it for
  uint64_t bytes_sent = 0;      // rows as they travel, to other ranks only
  uint64_t rounds = 0;          // of the slowest pair, summed over calls
  uint64_t nanoseconds = 0;     // in calls, waiting included
};

struct Metrics {
  OperationMetrics dispatch;
  OperationMetrics combine;
  uint64_t plans = 0;
  uint64_t refusals = 0;  // calls that this rank refused
  uint64_t faults = 0;
  uint64_t resets = 0;
  uint64_t waiting_nanoseconds = 0;  // of the calling thread for steps on a GPU, such as an exact dispatch's headers
};

}  // namespace heddle
