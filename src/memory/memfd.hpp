// Memory with a descriptor but no name: nothing in /dev/shm or /tmp, gone with its last holder however that ends.
#pragma once

#include "base/descriptor.hpp"

#include <cstddef>

namespace heddle {

/// `bytes` rounded up to whole pages, zero, and sealed against any change of its size: a peer that shrank it would
/// kill us with SIGBUS. Throws Error{system}.
Descriptor make_sealed_memory(std::size_t bytes);

/// Checks what `peer` handed over before it is mapped. Throws Error{mismatch} that says what was wanted and seen.
void check_sealed_memory(const Descriptor&, std::size_t bytes, int peer);

}  // namespace heddle
