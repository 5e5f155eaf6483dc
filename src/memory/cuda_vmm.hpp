// Windows in GPU memory, or in host memory that GPUs reach: what is there is tried best first, all ranks alike.
//   fabric      GPU memory shared by fabric handle, also between hosts of one NVLink domain
//   descriptor  GPU memory shared by file descriptor, between processes and threads of one host
//   mixed       GPU memory shared by file descriptor; what pairs write whose GPUs do not reach each other lies in
//               pinned host memory
//   pinned      shared host memory mapped by every GPU: needs no access from GPU to GPU
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "memory/patches.hpp"
#include "memory/symmetric_memory.hpp"

namespace heddle {

enum class CudaPath : std::uint8_t { automatic, fabric, descriptor, mixed, pinned };

constexpr const char* name_of(CudaPath path) {
  constexpr const char* kNames[] = {"automatic", "fabric", "descriptor", "mixed", "pinned"};
  return kNames[static_cast<int>(path)];
}

struct CudaWindows {
  std::size_t bytes = 0;
  int device = 0;
  CudaPath path = CudaPath::automatic;  // else this one or an error
  std::optional<Window> layout{};       // which rank writes where; without it no path is mixed
  RankPairs apart{};  // pairs that shall go through pinned host memory though their GPUs reach each other
};

struct CudaMemory {
  SymmetricMemory memory;
  CudaPath path;
  std::string reason;  // why none of the better ones; empty for the best
  RankPairs apart{};   // of a mixed path: pairs that go through pinned host memory
};

/// Why this machine cannot run CUDA: nothing found, or too old (with what is needed and what was found). Empty: it can.
std::string cuda_problem();

/// Collective; the rules of symmetric_memory.hpp hold. Ranks are threads or processes, with a GPU each or sharing one.
CudaMemory make_cuda_windows(Bootstrap&, const CudaWindows&, std::chrono::nanoseconds deadline,
                             std::span<const int> members = {});

}  // namespace heddle
