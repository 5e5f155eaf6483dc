// Every heddle::Error becomes the class of heddle.errors that has its code's name.
#include <heddle/error.hpp>

#include "bindings.hpp"

namespace heddle::python {
namespace {

nb::object class_of(ErrorCode code) { return nb::module_::import_("heddle.errors").attr("BY_CODE")[name_of(code)]; }

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    PyErr_SetString(class_of(error.code()).ptr(), error.what());
  }
}

}  // namespace

void bind_errors(nb::module_&) { nb::register_exception_translator(translate); }

}  // namespace heddle::python
