#include <heddle/tensor.hpp>

#include <fmt/ranges.h>

#include <cstdlib>

#include "base/error.hpp"

namespace heddle {

int64_t TensorView::stride(size_t i) const {
  if (!strides.empty()) return i < strides.size() ? strides[i] : 1;
  int64_t stride = 1;
  for (size_t inner = i + 1; inner < shape.size(); ++inner) stride *= shape[inner];
  return stride;
}

int64_t TensorView::numel() const {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

bool TensorView::has_dense_rows() const {
  return shape.empty() || shape.back() <= 1 || stride(shape.size() - 1) == 1;
}

bool TensorView::is_contiguous() const {
  int64_t dense = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] > 1 && stride(i) != dense) return false;
    dense *= shape[i];
  }
  return true;
}

std::string TensorView::describe() const {
  if (!is_set()) return "nothing";
  return fmt::format("{} [{}]", name_of(dtype), fmt::join(shape, ", "));
}

Tensor allocate_host(DType dtype, std::vector<int64_t> shape) {
  constexpr size_t kAlign = 64;
  TensorView view{.data = nullptr, .dtype = dtype, .shape = std::move(shape), .strides = {}, .device = {}};
  const size_t bytes = static_cast<size_t>(view.numel()) * size_of(dtype);
  const size_t padded = (bytes / kAlign + 1) * kAlign;
  void* memory = std::aligned_alloc(kAlign, padded);
  if (memory == nullptr) fail(ErrorCode::system, "out of memory: {} for a {} tensor", padded, view.describe());
  view.data = memory;
  return {view, std::shared_ptr<void>(memory, std::free)};
}

TensorView view_of(void* data, DType dtype, std::initializer_list<int64_t> shape) {
  return {.data = data, .dtype = dtype, .shape = shape, .strides = {}, .device = {}};
}

}  // namespace heddle
