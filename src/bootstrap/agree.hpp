// Agreement at birth (I13): ranks that were given different settings find out before they send anything.
#pragma once

#include "bootstrap/bootstrap.hpp"

#include <string>

namespace heddle {

struct Setting {
  std::string name;
  std::string value;
};

/// Collective. Throws the same Error{mismatch} on every rank if any value differs; it names each such setting, its
/// values, and the ranks that hold them.
void agree(Bootstrap&, std::span<const Setting>);

}  // namespace heddle
