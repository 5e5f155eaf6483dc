#include "tensor.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <heddle/error.hpp>

#include "array.hpp"
#include "dtype.hpp"
#include "exchange.hpp"
#include "foreign.hpp"
#include "torch_memory.hpp"

namespace heddle::python {
namespace {

template <class Framework>
nb::object share(const Tensor& tensor, nb::dlpack::dtype dtype, Framework) {
  const TensorView& view = tensor.view;
  auto* owner = new std::shared_ptr<void>(tensor.owner);
  const nb::capsule capsule(owner, [](void* held) noexcept { delete static_cast<std::shared_ptr<void>*>(held); });
  const std::vector<size_t> shape(view.shape.begin(), view.shape.end());
  const int device = view.device.kind == DeviceKind::cuda ? nb::device::cuda::value : nb::device::cpu::value;
  nb::ndarray<Framework> array(view.data, shape.size(), shape.data(), capsule,
                               view.strides.empty() ? nullptr : view.strides.data(), dtype, device, view.device.index,
                               'C');
  return nb::cast(array, nb::rv_policy::reference);
}

nb::object to_numpy(const Tensor& tensor) { return share(tensor, numpy_of(tensor.view.dtype), nb::numpy()); }

/// An object that speaks DLPack, for frameworks other than torch on a GPU.
nb::object to_dlpack(const Tensor& tensor) { return share(tensor, dlpack_of(tensor.view.dtype), nb::array_api()); }

/// Not every torch takes float8 by DLPack.
nb::object to_torch(const Tensor& tensor) {
  if (nb::object own = torch_tensor_of(tensor); own.is_valid()) return own;
  if (nb::object own = foreign_array(tensor); !own.is_none()) return own;
  if (const Exchange* torch = exchange_of_torch()) {
    if (nb::object given = give(*torch, tensor, dlpack_of(tensor.view.dtype)); given.is_valid()) return given;
  }
  if (const DType dtype = tensor.view.dtype; dtype == DType::e4m3 || dtype == DType::e5m2) {
    const nb::object bytes = share(tensor, dlpack_of(DType::u8), nb::pytorch());
    return bytes.attr("view")(nb::module_::import_("torch").attr(name_of(dtype)));
  }
  return share(tensor, dlpack_of(tensor.view.dtype), nb::pytorch());
}

}  // namespace

Allocate allocator_of(nb::callable make) {
  const std::shared_ptr<Foreign> held(new Foreign(std::move(make)), DropForeign());
  return [held](DType dtype, std::vector<int64_t> shape) {
    const nb::gil_scoped_acquire gil;
    nb::object array = held->array(name_of(dtype), shape);
    const Array arrived = writable_array_of(array, "the allocator's array", std::string(name_of(dtype)));
    HEDDLE_CHECK(arrived.view.shape == shape && arrived.view.is_contiguous(),
                 "the allocator returned {}, wanted contiguous {}", arrived.view.describe(), fmt::join(shape, " x "));
    return Tensor{arrived.view, std::shared_ptr<Foreign>(new Foreign(std::move(array), shape), DropForeign())};
  };
}

nb::object foreign_array(const Tensor& tensor) {
  if (std::get_deleter<DropForeign>(tensor.owner) == nullptr) return nb::none();
  const auto* foreign = static_cast<const Foreign*>(tensor.owner.get());
  return foreign->shape == tensor.view.shape ? foreign->array : nb::none();
}

nb::object exported(const Tensor& tensor, bool torch) {
  if (!tensor.is_set()) return nb::none();
  if (torch) return to_torch(tensor);
  return tensor.view.device.kind == DeviceKind::cuda ? to_dlpack(tensor) : to_numpy(tensor);
}

}  // namespace heddle::python
