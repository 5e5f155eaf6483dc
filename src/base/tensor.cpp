#include <heddle/tensor.hpp>

#include <fmt/ranges.h>

#include <utility>

#include "base/host_memory.hpp"

namespace heddle {

std::string name_of(const Device& device) {
  return device.kind == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

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
  TensorView view{.data = nullptr, .dtype = dtype, .shape = std::move(shape), .strides = {}, .device = {}};
  auto owner = host_blocks().take(static_cast<size_t>(view.numel()) * size_of(dtype));
  view.data = owner.get();
  return {view, std::move(owner)};
}

TensorView view_of(void* data, DType dtype, std::initializer_list<int64_t> shape) {
  return {.data = data, .dtype = dtype, .shape = shape, .strides = {}, .device = {}};
}

}  // namespace heddle
