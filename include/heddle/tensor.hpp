// Tensors as they cross the library's border: a view that owns nothing, and one that keeps its memory.
#pragma once

#include <heddle/device.hpp>
#include <heddle/dtype.hpp>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace heddle {

/// Strides are in elements; empty strides mean row-major. Valid as long as the memory it points to.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::u8;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  Device device;

  bool is_set() const { return !shape.empty(); }
  int64_t dim(size_t i) const { return i < shape.size() ? shape[i] : 1; }
  int64_t stride(size_t i) const;
  int64_t numel() const;
  /// The innermost dimension is dense; outer ones may have any stride.
  bool has_dense_rows() const;
  bool is_contiguous() const;
  /// "bfloat16 [4096, 7168]", for messages.
  std::string describe() const;
};

/// A view and what keeps its memory alive.
struct Tensor {
  TensorView view;
  std::shared_ptr<void> owner;

  bool is_set() const { return view.is_set(); }
  template <class T>
  T* data() const {
    return static_cast<T*>(view.data);
  }
};

/// Makes the outputs of a call: contiguous, uninitialised, on the buffer's device. A framework passes its own allocator.
using Allocate = std::function<Tensor(DType, std::vector<int64_t> shape)>;

/// 64-byte aligned host memory.
Tensor allocate_host(DType, std::vector<int64_t> shape);

/// A contiguous view of host memory that the caller keeps.
TensorView view_of(void* data, DType, std::initializer_list<int64_t> shape);

}  // namespace heddle
