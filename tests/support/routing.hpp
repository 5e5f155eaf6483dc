// Seeded worlds that all tests share: who routes what where, and rows whose bytes tell them apart.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.hpp"
#include "spec/dispatch.hpp"

namespace heddle::testing {

enum class Routing {
  uniform,     // distinct experts, each as likely
  zipf,        // distinct experts, the low ids far more likely
  one_expert,  // every token's only choice is the last expert
  nothing,     // every id is -1
  empty_rank,  // rank 0 has no tokens, the others are uniform
  one_rank,    // all columns go to distinct experts of the last rank (-1 once those run out)
  holes,       // uniform, then a third of the ids is -1
  duplicates,  // columns drawn one by one from few experts, so most tokens repeat one; some -1
  ragged       // uniform, each rank with its own number of tokens, at most the one asked for
};

inline constexpr Routing kRoutings[] = {Routing::uniform, Routing::zipf,       Routing::one_expert,
                                        Routing::nothing, Routing::empty_rank, Routing::one_rank,
                                        Routing::holes,   Routing::duplicates, Routing::ragged};

const char* name_of(Routing);

/// exact: whole numbers from -2 to 2 and weights 1 or 2: any sum over up to 64 columns is exact in bf16.
/// random: rows within +-4, weights within (0, 1).
enum class Values { exact, random };

struct WorldOptions {
  Routing routing = Routing::uniform;
  int ranks = 2;
  int tokens = 8;  // of a rank, at most
  int topk = 2;
  int experts = 8;
  int hidden = 32;
  DType dtype = DType::bf16;  // e4m3, bf16, f16, f32; u8: any bytes
  int scale_words = 0;
  Values values = Values::exact;
  double skew = 1.2;  // of zipf
  int ones = 0;       // one in so many 8-byte pieces of a row is all ones; 0: none
  std::uint64_t seed = 1;
};

/// Weights of -1 columns are NaN: nobody may use them.
spec::World make_world(const WorldOptions&);

/// The same tokens routed by a map of ranks instead of ids; the weights go too.
spec::World as_rank_map(spec::World);

/// Rows for a combine, [received.rows][hidden] of dtype (bf16, f16, f32); rows that stand for no token are all NaN.
spec::Bytes make_outputs(const spec::Received&, int hidden, DType dtype, Values values = Values::exact,
                         std::uint64_t seed = 1);

}  // namespace heddle::testing
