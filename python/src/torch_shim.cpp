#include "torch_shim.hpp"

#include <dlfcn.h>

#include <string>

#include "strides.hpp"

namespace heddle::python {
namespace {

template <class Function>
bool take(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  return function != nullptr;
}

bool take_number(void* library, const std::string& name, int32_t& number) {
  int32_t (*tell)() = nullptr;
  if (!take(library, name.c_str(), tell)) return false;
  number = tell();
  return true;
}

}  // namespace

const TorchShim* TorchShim::find() {
  static const TorchShim* const found = [] {
    auto* shim = new TorchShim;
    return shim->load() ? shim : nullptr;
  }();
  return found;
}

bool TorchShim::load() {
  try {
    const nb::object wrap =
        nb::module_::import_("torch").attr("_C").attr("_aoti").attr("alloc_tensor_by_stealing_from_void_ptr");
    wrap_ = nb::object(wrap).release().ptr();
  } catch (nb::python_error&) {
    return false;
  }
  void* library = ::dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  return library != nullptr && take(library, "aoti_torch_empty_strided", empty_) &&
         take(library, "aoti_torch__reinterpret_tensor", view_) &&
         take(library, "aoti_torch_new_tensor_handle", again_) && take(library, "aoti_torch_get_data_ptr", address_) &&
         take(library, "aoti_torch_delete_tensor_object", drop_) &&
         take_number(library, "aoti_torch_device_type_cpu", cpu_) &&
         take_number(library, "aoti_torch_device_type_cuda", cuda_) && load_types(library) && learn_who_drops();
}

/// The function is said to take the tensor; torch 2.13's leaves its handle to us, and all memory with it. So one is tried: what
/// Python lets go of then goes, or somebody holds it.
bool TorchShim::learn_who_drops() {
  const TorchTensor probe = empty(DType::u8, {1}, {});
  if (probe == nullptr) return false;
  nb::object tensor = wrapped(probe);
  const nb::object watch = nb::module_::import_("weakref").attr("ref")(tensor);
  tensor.reset();
  wrapping_takes_ = watch().is_none();
  if (!wrapping_takes_) drop(probe);
  return true;
}

bool TorchShim::load_types(void* library) {
  for (size_t i = 0; i < kTypes; ++i) {
    if (!take_number(library, std::string("aoti_torch_dtype_") + name_of(static_cast<DType>(i)), types_[i])) return false;
  }
  return true;
}

TorchTensor TorchShim::empty(DType dtype, const std::vector<int64_t>& shape, const Device& device) const {
  const std::vector<int64_t> strides = strides_of({.dtype = dtype, .shape = shape});
  const bool on_gpu = device.kind == DeviceKind::cuda;
  TorchTensor made = nullptr;
  const Status failed = empty_(static_cast<int64_t>(shape.size()), shape.data(), strides.data(),
                               types_[static_cast<size_t>(dtype)], on_gpu ? cuda_ : cpu_, on_gpu ? device.index : 0, &made);
  return failed == 0 ? made : nullptr;
}

TorchTensor TorchShim::view(TorchTensor of, const TensorView& view) const {
  const std::vector<int64_t> strides = strides_of(view);
  TorchTensor made = nullptr;
  const Status failed = view_(of, static_cast<int64_t>(view.shape.size()), view.shape.data(), strides.data(), 0, &made);
  return failed == 0 ? made : nullptr;
}

TorchTensor TorchShim::again(TorchTensor of) const {
  TorchTensor made = nullptr;
  return again_(of, &made) == 0 ? made : nullptr;
}

void* TorchShim::address(TorchTensor tensor) const {
  void* address = nullptr;
  address_(tensor, &address);
  return address;
}

void TorchShim::drop(TorchTensor tensor) const { drop_(tensor); }

nb::object TorchShim::wrapped(TorchTensor tensor) const {
  const nb::object capsule = nb::steal(PyCapsule_New(tensor, nullptr, nullptr));
  return nb::handle(wrap_)(capsule);
}

nb::object TorchShim::python(TorchTensor tensor) const {
  nb::object object = wrapped(tensor);
  if (!wrapping_takes_) drop(tensor);
  return object;
}

}  // namespace heddle::python
