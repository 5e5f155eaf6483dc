// Makes plans. Local: an error here meets no peer.
#pragma once

#include <memory>

#include "ops/calls.hpp"

namespace heddle {

std::shared_ptr<const PlanData> make_plan_data(Calls&, const TensorView& ids, const Placement&);
std::shared_ptr<const PlanData> make_plan_data_from_map(Calls&, const TensorView& is_token_in_rank, const Placement&);

}  // namespace heddle
