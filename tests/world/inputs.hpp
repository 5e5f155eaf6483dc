// The tensors that one rank of a case gives to its buffer.
#pragma once

#include "world/case.hpp"

namespace heddle::testing {

class Inputs {
 public:
  /// Refers to the case and its meaning.
  Inputs(const Case&, const Meaning&, int rank);

  Plan plan(Buffer&) const;
  DispatchInput dispatch_input() const;
  DispatchOptions dispatch_options() const;
  CombineInput combine_input() const;
  CombineOptions combine_options() const;

 private:
  TensorView x_view() const;
  TensorView scales_view() const;

  const Case& case_;
  const Meaning& meaning_;
  const spec::Batch& batch_;
  int rank_;
  std::vector<int64_t> wide_ids_;
  std::vector<std::byte> apart_;           // x with room between its rows
  std::vector<uint32_t> column_major_;     // the scales
};

}  // namespace heddle::testing
