// What a CUDA backend is made of, and how; there is a twin in builds without a CUDA compiler.
#pragma once

#include <cstdint>
#include <memory>

#include "device/peer_view.hpp"
#include "protocol/backend.hpp"

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

/// A CudaBackend. Throws Error{system} where CUDA cannot run.
std::unique_ptr<Backend> make_cuda_backend(const CudaParts&);

}  // namespace heddle
