// A group whose all-gather is a Python function: torch's all_gather_object, mpi4py's allgather.
#pragma once

#include <heddle/bootstrap.hpp>

#include <memory>

#include "bindings.hpp"

namespace heddle::python {

/// `all_gather(bytes)` returns every rank's bytes, by rank. Its exceptions come out of the calls that needed it.
/// Throws Error{usage} for a rank outside [0, size).
std::unique_ptr<Bootstrap> caller_bootstrap(int rank, int size, nb::callable all_gather);

}  // namespace heddle::python
