// Tensors of frameworks that publish DLPack's table of C functions (torch from 2.10 on): they come and go without a call of
// Python's, and without the exchange of streams that __dlpack__ asks for.
#pragma once

#include <heddle/tensor.hpp>

#include <nanobind/ndarray.h>

namespace heddle::python {

namespace nb = nanobind;

/// What the table's functions take and give; the layout is DLPack's, version 1.
struct ManagedTensor {
  uint32_t version[2];  // major, minor
  void* context;
  void (*drop)(ManagedTensor*);
  uint64_t flags;
  nb::dlpack::dltensor tensor;
};

struct Exchange {
  uint32_t version[2];  // major, minor
  void* older;
  void* allocate;
  void* take_managed;
  int (*give)(ManagedTensor*, void** object);        // steals the tensor
  int (*look)(void* object, nb::dlpack::dltensor*);  // shape and strides stay the object's; may be null
  int (*current_stream)(int32_t device_type, int32_t device, void** stream);
};

/// Null if objects of the type have none that this code knows.
const Exchange* exchange_of(nb::handle type);

/// torch.Tensor's; imports torch.
const Exchange* exchange_of_torch();

/// The tensor as an object of the framework, which keeps `tensor.owner`. Nothing if the framework cannot have it.
nb::object give(const Exchange&, const Tensor& tensor, nb::dlpack::dtype);

/// torch's current stream of a GPU as a number.
uintptr_t torch_stream(int gpu);

}  // namespace heddle::python
