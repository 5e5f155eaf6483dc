// Small batches inside graphs: chained pairs and single operations.
#pragma once

namespace heddle::bench {

/// heddle_cuda_bench decode OUT.json [TOKENS]...
///   HEDDLE_SMS    SMs of a rank, by commas; default its share, for 128 tokens fewer, too
///   HEDDLE_RANKS  ranks; default one a GPU, at least 2
///   HEDDLE_ONLY   lines whose name has this in it
int run_decode(int argc, char** argv);

}  // namespace heddle::bench
