// A split call between its halves.
#pragma once

#include <heddle/buffer.hpp>

#include <memory>

namespace heddle::python {

/// Keeps its arrays until the receive. To be dropped with the GIL held.
template <class Result>
struct Sent {
  Split<Result> split;
  std::shared_ptr<void> arrays;
};

}  // namespace heddle::python
