#include "torch_memory.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <utility>

#include "exchange.hpp"
#include "foreign.hpp"
#include "torch_shim.hpp"

namespace heddle::python {
namespace {

/// A tensor that the C interface made; any thread may drop it.
struct Shimmed {
  const TorchShim& shim;
  TorchTensor tensor;
  std::vector<int64_t> shape;

  ~Shimmed() {
    if (nb::is_alive()) shim.drop(tensor);  // else torch's allocator may be gone, too
  }
};

/// By its deleter a tensor's owner is known to be Shimmed.
struct DropShimmed {
  void operator()(Shimmed* shimmed) const { delete shimmed; }
};

/// torch.empty, or what stands for it, with all that does not change from tensor to tensor.
class TorchMemory {
 public:
  TorchMemory(nb::object make, const Device& device)
      : torch_(nb::module_::import_("torch")), make_(std::move(make)), empty_(torch_.attr("empty")),
        device_(torch_.attr("device")(name_of(device))) {}

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

Allocate allocator_in_python(nb::object make, Device device) {
  const std::shared_ptr<TorchMemory> held(new TorchMemory(std::move(make), device), [](TorchMemory* memory) {
    if (!nb::is_alive()) return;  // an interpreter that has ended takes nothing back
    const nb::gil_scoped_acquire gil;
    delete memory;
  });
  return [held, device](DType dtype, std::vector<int64_t> shape) {
    const nb::gil_scoped_acquire gil;
    nb::object tensor = held->make(dtype, shape);
    const TensorView view{
        .data = TorchMemory::address_of(tensor), .dtype = dtype, .shape = shape, .strides = {}, .device = device};
    return Tensor{view, std::shared_ptr<Foreign>(new Foreign(std::move(tensor), std::move(shape)), DropForeign())};
  };
}

/// Where torch cannot, Python asks it again, to say why.
Allocate allocator_in_c(const TorchShim& shim, Device device) {
  return [&shim, device, in_python = allocator_in_python(nb::none(), device)](DType dtype, std::vector<int64_t> shape) {
    const TorchTensor made = shim.empty(dtype, shape, device);
    if (made == nullptr) return in_python(dtype, std::move(shape));
    const TensorView view{.data = shim.address(made), .dtype = dtype, .shape = shape, .strides = {}, .device = device};
    return Tensor{view, std::shared_ptr<Shimmed>(new Shimmed{shim, made, std::move(shape)}, DropShimmed())};
  };
}

}  // namespace

Allocate torch_allocator_of(nb::object make, Device device) {
  const TorchShim* shim = make.is_none() ? TorchShim::find() : nullptr;
  return shim != nullptr ? allocator_in_c(*shim, device) : allocator_in_python(std::move(make), device);
}

nb::object torch_tensor_of(const Tensor& tensor) {
  if (std::get_deleter<DropShimmed>(tensor.owner) == nullptr) return {};
  const auto* own = static_cast<const Shimmed*>(tensor.owner.get());
  const bool is_whole = tensor.view.strides.empty() && tensor.view.shape == own->shape;
  const TorchTensor out = is_whole ? own->shim.again(own->tensor) : own->shim.view(own->tensor, tensor.view);
  return out == nullptr ? nb::object() : own->shim.python(out);
}

}  // namespace heddle::python
