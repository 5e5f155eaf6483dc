// The operations that are timed, and the data for them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "support/routing.hpp"
#include "support/step_rank.hpp"

namespace heddle::bench {

struct Operation {
  std::string name;
  testing::DispatchCase dispatch;
  bool is_combine = false;  // of what the dispatch put out
};

/// FP8 and BF16 dispatch and BF16 combine, each token-major and expert-major.
std::vector<Operation> operations(int tokens);

struct Batches {
  int ranks = 2;
  int tokens = 4096;
  int hidden = 7168;
  int topk = 8;
  int experts = 256;
  testing::Routing routing = testing::Routing::uniform;

  bool operator==(const Batches&) const = default;
};

/// Random bytes for rows: e4m3 with a scale for each 128 channels, or bf16.
spec::World make_rows(const Batches&, DType);

/// Bytes that a rank sends to others in an operation.
double wire_bytes(const spec::World&, int rank, const Operation&);

}  // namespace heddle::bench
