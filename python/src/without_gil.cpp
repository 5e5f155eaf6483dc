#include "without_gil.hpp"

#include <cxxabi.h>
#include <unistd.h>

namespace heddle::python {

WithoutGil::~WithoutGil() {
  try {
    PyEval_RestoreThread(state_);
  } catch (abi::__forced_unwind&) {
    for (;;) ::pause();
  }
}

}  // namespace heddle::python
