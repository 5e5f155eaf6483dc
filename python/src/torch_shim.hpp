// torch's C interface for compiled models, which it keeps from version to version (torch/csrc/inductor/aoti_torch/c/shim.h):
// tensors are made and wrapped without a call of Python's. Found in the process, so that this module is built without torch.
#pragma once

#include <heddle/tensor.hpp>

#include <array>

#include "bindings.hpp"

namespace heddle::python {

/// A tensor of torch's; whoever has it drops it.
using TorchTensor = struct AtenTensorOpaque*;

/// Functions that make a tensor give null where torch could not; its reasons are its own. But for python() they need no GIL.
class TorchShim {
 public:
  /// Null where torch has not got all of it. With the GIL held; imports torch.
  static const TorchShim* find();

  /// Contiguous, uninitialised; on a GPU of torch's current stream.
  TorchTensor empty(DType, const std::vector<int64_t>& shape, const Device&) const;
  /// The same storage by the view's shape and strides, from its beginning.
  TorchTensor view(TorchTensor of, const TensorView&) const;
  TorchTensor again(TorchTensor of) const;
  void* address(TorchTensor) const;
  void drop(TorchTensor) const;
  /// For Python; takes the tensor.
  nb::object python(TorchTensor) const;

 private:
  using Status = int32_t;
  static constexpr size_t kTypes = static_cast<size_t>(DType::i64) + 1;

  bool load();
  bool load_types(void* library);
  bool learn_who_drops();
  nb::object wrapped(TorchTensor) const;

  Status (*empty_)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, TorchTensor*) = nullptr;
  Status (*view_)(TorchTensor, int64_t, const int64_t*, const int64_t*, int64_t, TorchTensor*) = nullptr;
  Status (*again_)(TorchTensor, TorchTensor*) = nullptr;
  Status (*address_)(TorchTensor, void**) = nullptr;
  Status (*drop_)(TorchTensor) = nullptr;
  std::array<int32_t, kTypes> types_{};
  int32_t cpu_ = 0, cuda_ = 0;
  PyObject* wrap_ = nullptr;  // for ever
  bool wrapping_takes_ = false;
};

}  // namespace heddle::python
