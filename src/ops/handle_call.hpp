// Makes a handle again from the tensors of one. Local: an error here meets no peer.
#pragma once

#include <memory>

#include "ops/calls.hpp"

namespace heddle {

std::shared_ptr<const Route> make_route(Calls&, std::shared_ptr<const PlanData>, const RouteTensors&);

}  // namespace heddle
