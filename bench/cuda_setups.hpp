// What the sections of the curves measure.
#pragma once

#include <string>
#include <vector>

#include "cuda_operations.hpp"
#include "memory/cuda_vmm.hpp"

namespace heddle::bench {

/// One operation under one set of circumstances, on some numbers of SMs.
struct Setup {
  std::string section;
  std::string name;
  Batches batches;
  Operation operation;
  testing::CombineCase combine{};  // of an operation that is one
  CudaPath path = CudaPath::automatic;
  bool in_place = false;
  int outputs = 1;  // held alive and filled in turn
  bool plan_only = false;
  std::vector<int> sms{};  // empty: all
  std::string plain{};     // the setup of this section that it is compared with
};

/// sms, tokens, routing, held, place, pinned, plan, options.
const std::vector<std::string>& sections();

/// `batches` says ranks and tokens; sections about tokens go through their own numbers, up to `most_tokens`. Throws
/// Error{usage} for another name.
std::vector<Setup> setups_of(const std::string& section, const Batches& batches, int most_tokens);

}  // namespace heddle::bench
