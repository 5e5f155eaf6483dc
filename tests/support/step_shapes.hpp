// The cases of a test as shapes that ranks agree on.
#pragma once

#include "layout/shape.hpp"
#include "spec/world.hpp"

namespace heddle::testing {

struct DispatchCase {
  Layout layout = Layout::token_major;
  Quantise quantise = Quantise::none;
  float global_scale = 0.0f;  // of nvfp4; 0: none is given
  ScaleLayout scale_layout = ScaleLayout::usual;
  DType dtype = DType::bf16;  // of the rows
  int alignment = 1;
  int max_tokens = 0;  // needed by slabs and fixed sizes
  bool fixed_size = false;
  int64_t capacity = -1;  // with fixed_size: rows of the outputs; -1 = the worst case
  bool zero_padding = false;
  bool split = false;
  bool tells_ready = false;  // of experts, in grouped layouts
};

struct CombineCase {
  Weights weights = Weights::none;
  ResultWire wire = ResultWire::usual;
  int biases = 0;
  bool row_weights = false;
  bool split = false;
};

Shape dispatch_shape(const spec::World&, const DispatchCase&);
Shape combine_shape(const spec::World&, const DispatchCase& dispatched, const CombineCase&);

/// Bytes of a window whose ranges hold `slots` rows of a dispatch of this world (and its header tables).
size_t window_for(const spec::World&, const DispatchCase&, int64_t slots);

}  // namespace heddle::testing
