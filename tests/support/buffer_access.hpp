// Lets a test build a Buffer from its own parts: ports, clocks, heaps.
#pragma once

#include <heddle/buffer.hpp>

#include <utility>

#include "ops/calls.hpp"

namespace heddle {

struct BufferAccess {
  static Buffer make(BufferParts parts) { return Buffer(std::move(parts)); }
};

}  // namespace heddle
