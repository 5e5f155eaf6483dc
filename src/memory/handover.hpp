// Every rank gives a descriptor to every near rank: how shared memory, of the host or of a GPU, reaches its peers.
#pragma once

#include "base/descriptor.hpp"

#include <chrono>
#include <vector>

namespace heddle {

class Bootstrap;

/// Collective. Returns the peers' descriptors by bootstrap rank; those of this rank and of far ranks (other hosts) are
/// empty. Throws on all ranks or on none; Error{timeout} names who handed nothing in within `deadline`.
std::vector<Descriptor> exchange_descriptors(Bootstrap&, const Descriptor& mine, std::chrono::nanoseconds deadline);

}  // namespace heddle
