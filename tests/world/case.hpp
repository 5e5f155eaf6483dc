// One dispatch and the combine that brings its results back, on all ranks: what goes in, and what the spec says comes out.
#pragma once

#include <string>
#include <vector>

#include "spec/combine.hpp"
#include "spec/plan.hpp"
#include "support/routing.hpp"
#include "support/world.hpp"

namespace heddle::testing {

/// Where the weights of the sum come from.
enum class Sum {
  plain,     // no weights
  at_owner,  // given to the dispatch
  late,      // given to an unsplit combine, and put to the owners first
  alone      // given to a split combine: rows travel one by one
};

/// Memory for rows in place (I14).
enum class Heap {
  none,        // in_place is off
  ample,       // every rank's outputs fit
  one_row,     // rank 0's heap holds one row
  empty_once,  // rank 0 has none
  nowhere      // in_place is on, but no rank has a heap
};

struct Case {
  WorldOptions world;
  bool by_rank_map = false;

  Layout layout = Layout::token_major;
  int alignment = 1;
  Quantise quantise = Quantise::none;
  float global_scale = 1.0f;  // of nvfp4
  ScaleLayout scale_layout = ScaleLayout::usual;
  bool fixed_size = false;
  int64_t capacity = -1;
  int max_tokens = 0;  // of the call; 0 = the buffer's, which is world.tokens
  bool zero_padding = false;
  bool split_dispatch = false;
  bool with_weights = true;

  Sum sum = Sum::plain;
  bool split_combine = false;
  DType in_dtype = DType::bf16;
  DType out_dtype = DType::bf16;
  ResultWire wire = ResultWire::usual;
  int biases = 0;
  bool row_weights = false;

  int slots = 0;       // of the tightest of the two calls; 0 = one round for all
  bool late_fits = true;  // the window holds the table of late weights
  int repeats = 1;     // the plan and the handle again
  Heap heap = Heap::none;
  bool wide_ids = false;       // int64
  bool strided = false;        // rows of x apart, scales column-major

  std::string describe() const;
};

/// What the spec says of a case, for every rank.
struct Meaning {
  spec::World world;
  std::vector<spec::Plan> plans;
  std::vector<spec::Received> received;
  std::vector<spec::Bytes> outputs;  // what the experts make of it
  std::vector<std::vector<float>> row_weights;
  std::vector<std::vector<spec::Bytes>> biases;
  std::vector<spec::Combined> combined;
};

/// `mask` holds in the dispatch, `later` in the combine.
Meaning meaning_of(const Case&, const spec::Mask& mask, const spec::Mask& later);
Meaning meaning_of(const Case&, const spec::Mask& mask = {});
/// Nobody hears from these ranks.
spec::Mask without(int ranks, const std::vector<int>& gone);

/// A window that gives the case its slots a pair, and its settings.
WorldSettings settings_for(const Case&);

/// The calls of one rank, each result compared byte for byte.
void play(Rank&, const Case&, const Meaning&);

}  // namespace heddle::testing
