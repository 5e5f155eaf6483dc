// What a CUDA backend is made of, and how; there is a twin in builds without a CUDA compiler.
#pragma once

#include <cstdint>
#include <memory>

#include "device/peer_view.hpp"
#include "protocol/backend.hpp"

struct CUstream_st;

namespace heddle {

struct CudaParts {
  int device = 0;
  int rank = 0;
  int ranks = 1;
  PeerView windows{};
  bool windows_on_host = false;  // in pinned memory, which the host reads too
  PeerView heap{};
  uint64_t timeout_ns = 0;
};

/// Which coop runs the steps. One warp or one block are for tests of the protocol; the grid is for use.
enum class Workers { warp, block, grid };

/// Where the next steps run.
struct Launch {
  CUstream_st* stream = nullptr;
  int num_sms = 0;  // 0: all
  Workers workers = Workers::grid;
  bool wait = true;  // each step returns when it has ended; else at once, and true
};

/// A CudaBackend. Throws Error{system} where CUDA cannot run.
std::unique_ptr<Backend> make_cuda_backend(const CudaParts&);

}  // namespace heddle
