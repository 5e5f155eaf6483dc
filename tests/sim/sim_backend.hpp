// The steps of protocol/ over a SimPort. One file makes them: tests/mutants/ compiles it anew against damaged headers.
#pragma once

#include <cstdint>
#include <memory>

#include "protocol/backend.hpp"

namespace heddle::testing {

class Universe;

/// `watched`: the universe's hash will hold all of this rank's memory.
std::unique_ptr<Backend> make_sim_backend(Universe&, int rank, bool watched);

/// The add of a put that lands.
void add_count(uint64_t* word, uint64_t n);

}  // namespace heddle::testing
