// How a buffer is built. All ranks must agree on all but timeout and threads; construction checks that
// (docs/protocol.md, I13).
#pragma once

#include <heddle/device.hpp>
#include <heddle/topology.hpp>

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

namespace heddle {

struct Config {
  int experts = 1;
  /// Upper bound of a batch, tokens a rank. Calls may name a smaller one. 0 = none; then fixed-size and split calls must.
  int max_tokens = 0;
  /// Memory that peers write to, bytes a rank. Batches that exceed it go in rounds. 0 = 256 MiB.
  int64_t window_bytes = 0;
  /// How long a call waits for a peer.
  std::chrono::nanoseconds timeout = std::chrono::seconds(100);
  /// A peer that misses the deadline is masked (its part is zero, the result says so) instead of failing the call.
  bool mask_late_peers = false;
  /// CPU threads that work on one call.
  int threads = 1;
  /// Where the buffer works: the CPU, or this GPU of the process. All ranks the same kind; ranks may share a GPU.
  Device device{};
  /// On GPUs: host memory takes the puts even where GPUs reach one another's.
  bool pinned_windows = false;
  /// The same for these pairs of ranks only. Pairs whose GPUs do not reach each other need not be named.
  std::vector<std::pair<int, int>> pinned_pairs{};
  /// Most memory of outputs that peers write rows into themselves, bytes a rank, taken as outputs need it. Rows of outputs
  /// that do not fit are staged in the window, as all are with 0.
  int64_t heap_bytes = 0;
  /// On a GPU: most multiprocessors that a call takes. 0 = as many as gain something, of all or of an equal share where
  /// ranks share the GPU.
  int num_sms = 0;
};

inline constexpr int64_t kDefaultWindowBytes = int64_t{256} << 20;

/// Bytes of memory that a buffer of this configuration takes on each rank.
int64_t predicted_bytes(const Config&, int ranks);

}  // namespace heddle
