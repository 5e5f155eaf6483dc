// What a sum of rows is told.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"

namespace heddle {

struct Term {
  const void* row = nullptr;
  float weight = 0.0f;
};

struct SumArgs {
  void* out;
  DType out_dtype;
  DType in_dtype;     // of the terms' rows
  const void* bias0;  // or null
  const void* bias1;  // or null; used only with bias0
  DType bias_dtype;
  int64_t count;  // columns
};

struct CastArgs {
  void* out;
  DType out_dtype;
  const void* in;
  DType in_dtype;
  int64_t count;
};

}  // namespace heddle
