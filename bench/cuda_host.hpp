// What calls cost the thread that makes them, apart from their kernels.
#pragma once

namespace heddle::bench {

/// heddle_cuda_bench host OUT.json: microseconds of the thread's own processor time for calls of CUDA and for Buffer's, of
/// one rank with one token.
int run_host(int argc, char** argv);

}  // namespace heddle::bench
