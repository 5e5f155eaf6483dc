// What the host does by itself where the memory is its own (see cpu/), done by kernels of one thread where it is a GPU's.
#pragma once

#include "protocol/context.hpp"

namespace heddle {

/// In memory that the host can read.
struct ResetResult {
  uint64_t is_done = 0;  // written last
  uint64_t is_whole = 0;
  RankSet missing;
};

struct ResetArgs {
  Context ctx;
  RankSet members;
  ResetResult* result = nullptr;
};

inline constexpr int kResetThreads = 512;  // of the one kernel with more than one

/// Arguments: (DirectPort, Context), close_pair also the peer; claim_fault (Context, Fault); reset (DirectPort, ResetArgs).
struct ServiceKernels {
  const void* publish_fault = nullptr;
  const void* close_pair = nullptr;
  const void* announce_destroyed = nullptr;
  const void* claim_fault = nullptr;
  const void* reset = nullptr;
};

const ServiceKernels& service_kernels();

}  // namespace heddle
