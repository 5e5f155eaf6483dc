// Strides spelled out, for those who know no default.
#pragma once

#include <heddle/tensor.hpp>

#include <vector>

namespace heddle::python {

inline std::vector<int64_t> strides_of(const TensorView& view) {
  std::vector<int64_t> strides;
  for (size_t i = 0; i < view.shape.size(); ++i) strides.push_back(view.stride(i));
  return strides;
}

}  // namespace heddle::python
