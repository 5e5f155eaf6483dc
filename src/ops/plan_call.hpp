// Makes plans. Local: an error here meets no peer.
#pragma once

#include <memory>

#include "ops/calls.hpp"

namespace heddle {

/// `reach`: gets the tables that it names, which are then not the plan's.
std::shared_ptr<const PlanData> make_plan_data(Calls&, const TensorView& ids, const Placement&, Reach* reach = nullptr);
std::shared_ptr<const PlanData> make_plan_data_from_map(Calls&, const TensorView& is_token_in_rank, const Placement&);

/// For the one dispatch that is made next.
struct PlanForDispatch {
  std::shared_ptr<const PlanData> plan;
  bool is_made = true;   // else the dispatch makes it,
  TableView given = {};  // from these ids, which have no address where there are no tokens
};

/// Throws BadArgument.
PlanForDispatch make_plan_for_dispatch(Calls&, const TensorView& ids, const Placement&);

}  // namespace heddle
