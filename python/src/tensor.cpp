#include "tensor.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <heddle/error.hpp>

#include <array>

#include "array.hpp"
#include "dtype.hpp"
#include "exchange.hpp"

namespace heddle::python {
namespace {

/// Keeps an object of Python's (a framework's array, a callable) for C++; any thread may drop it.
struct Foreign {
  nb::object array;
  std::vector<int64_t> shape;

  explicit Foreign(nb::object object, std::vector<int64_t> its_shape = {})
      : array(std::move(object)), shape(std::move(its_shape)) {}
  ~Foreign() {
    if (!nb::is_alive()) {
      array.release();
      return;
    }
    const nb::gil_scoped_acquire gil;
    array.reset();
  }
};

/// By its deleter a tensor's owner is known to be a Foreign.
struct DropForeign {
  void operator()(Foreign* foreign) const { delete foreign; }
};

/// torch.empty on a GPU, or what stands for it, with all that does not change from tensor to tensor.
class TorchMemory {
 public:
  TorchMemory(nb::object make, int gpu)
      : torch_(nb::module_::import_("torch")), make_(std::move(make)), empty_(torch_.attr("empty")),
        device_(torch_.attr("device")("cuda", gpu)) {}

  nb::object make(DType dtype, const std::vector<int64_t>& shape) {
    nb::object& type = types_[static_cast<size_t>(dtype)];
    if (!type.is_valid()) type = torch_.attr(name_of(dtype));
    const nb::object sizes = nb::cast(shape);
    return make_.is_none() ? empty_(sizes, nb::arg("dtype") = type, nb::arg("device") = device_) : make_(type, sizes);
  }

  static void* address_of(nb::handle tensor) {
    nb::dlpack::dltensor lent;
    const Exchange* torch = exchange_of_torch();
    if (torch != nullptr && torch->look(tensor.ptr(), &lent) == 0) {
      return static_cast<std::byte*>(lent.data) + lent.byte_offset;
    }
    PyErr_Clear();
    return reinterpret_cast<void*>(nb::cast<uintptr_t>(tensor.attr("data_ptr")()));
  }

 private:
  nb::module_ torch_;
  nb::object make_, empty_, device_;
  std::array<nb::object, static_cast<size_t>(DType::i64) + 1> types_;
};

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

Allocate torch_allocator_of(nb::object make, int gpu) {
  const std::shared_ptr<TorchMemory> held(new TorchMemory(std::move(make), gpu), [](TorchMemory* memory) {
    if (!nb::is_alive()) return;  // an interpreter that has ended takes nothing back
    const nb::gil_scoped_acquire gil;
    delete memory;
  });
  return [held, gpu](DType dtype, std::vector<int64_t> shape) {
    const nb::gil_scoped_acquire gil;
    nb::object tensor = held->make(dtype, shape);
    const TensorView view{.data = TorchMemory::address_of(tensor),
                          .dtype = dtype,
                          .shape = shape,
                          .strides = {},
                          .device = {DeviceKind::cuda, gpu}};
    return Tensor{view, std::shared_ptr<Foreign>(new Foreign(std::move(tensor), std::move(shape)), DropForeign())};
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
