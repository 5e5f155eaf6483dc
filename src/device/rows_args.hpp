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

/// Terms of a sum of packed rows that have not travelled: rows of `dtype`. What packing would leave of their sum is one term.
struct OwnTerms {
  int first = -1;
  int end = -1;
  DType dtype = DType::bf16;
  bool is_row = false;  // one, as it is: -0 stays -0

  HEDDLE_HD float start() const { return is_row ? -0.0f : 0.0f; }  // of its chain
};

struct SumArgs {
  void* out;
  DType out_dtype;
  DType in_dtype;     // of the terms' rows
  const void* bias0;  // or null
  const void* bias1;  // or null; used only with bias0
  DType bias_dtype;
  int64_t count;  // columns
  // One of them may be packed (pack.hpp): its dtype means nothing then, and the columns are a whole row. What is packed is the sum of
  // the terms, or bias0 alone, as it is.
  ResultWire in_wire = ResultWire::usual;
  ResultWire out_wire = ResultWire::usual;
  OwnTerms own{};  // with in_wire

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
