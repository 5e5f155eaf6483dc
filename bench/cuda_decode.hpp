// Small batches inside graphs: chained pairs and single operations.
#pragma once

namespace heddle::bench {

/// heddle_cuda_bench decode OUT.json [TOKENS]...
int run_decode(int argc, char** argv);

}  // namespace heddle::bench
