// What a sum of rows is told.
#pragma once

#include <heddle/layout.hpp>

#include <cstdint>

#include "base/dtype.hpp"
#include "base/macros.hpp"

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
  // One of them may be packed (pack.hpp); its dtype means nothing then, and the columns are a whole row.
  ResultWire in_wire = ResultWire::usual;
  ResultWire out_wire = ResultWire::usual;

  HEDDLE_HD bool is_packed() const { return heddle::is_packed(in_wire) || heddle::is_packed(out_wire); }
};

struct CastArgs {
  void* out;
  DType out_dtype;
  const void* in;
  DType in_dtype;
  int64_t count;
  ResultWire out_wire = ResultWire::usual;
};

}  // namespace heddle
