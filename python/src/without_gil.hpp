// C++ that waits lets Python's other threads run.
#pragma once

#include "bindings.hpp"

namespace heddle::python {

/// Releases the GIL for its scope. A thread that wants it back when the interpreter has ended sleeps until the process ends:
/// Python would unwind it, through frames that may not throw.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace heddle::python
