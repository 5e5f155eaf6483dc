// A split call between its halves.
#pragma once

#include <heddle/buffer.hpp>

#include <memory>
#include <utility>

#include "own_buffer.hpp"

namespace heddle::python {

/// Keeps its arrays until the receive. To be dropped with the GIL held.
template <class Result>
struct Sent {
  Split<Result> split;
  Kept arrays;

  Sent(OwnBuffer& own, Split<Result> sent, std::shared_ptr<void> its_arrays)
      : split(std::move(sent)), arrays(own.keep<Result>(std::move(its_arrays))) {}
};

}  // namespace heddle::python
