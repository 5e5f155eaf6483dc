#include "ops/call_cost.hpp"

#include <algorithm>
#include <cmath>

namespace heddle {
namespace {

constexpr double kStart = 58;         // us: launch, plan, meeting the peers, end
constexpr double kGroupedStart = 98;  // us: and the first rows of all experts
constexpr double kLink = 360e3;       // bytes a us, each way
constexpr double kRow = 0.25;         // us of one SM for a row on its way: claim, tag, ids
constexpr double kStore = 60e3;       // bytes a us that one SM stores
constexpr double kSum = 41e3;         // bytes a us that one SM loads and adds

/// Of `groups` equal groups of experts, how many a token with `topk` different ones is expected to reach.
double groups_reached(double groups, double topk) { return groups * (1 - std::pow(1 - 1 / groups, topk)); }

}  // namespace

CallCost CallCost::of(const Topology& topo, const Shape& shape, int64_t tokens) {
  const double ranks = topo.world;
  const double row = shape.payload_bytes + 4.0 * shape.scale_words;
  const double topk = shape.topk > 0 ? shape.topk : ranks;  // a plan from a rank map has no experts: all ranks
  const double reached = groups_reached(ranks, topk);
  const bool is_grouped = shape.layout != Layout::token_major;
  const double hits = is_grouped ? topk : reached;
  const double sent = static_cast<double>(tokens) * reached;
  const double of_experts = static_cast<double>(tokens) * hits;
  CallCost cost;
  cost.wire_bytes = sent * (ranks - 1) / ranks * row;
  cost.wire_rows = 2 * sent * (ranks - 1) / ranks;
  if (shape.kind == Kind::combine) {
    cost.is_combine = true;
    cost.is_packed = heddle::is_packed(shape.result_wire);
    cost.local_bytes = (of_experts + sent) * row;
    return cost;
  }
  cost.is_grouped = is_grouped;
  cost.local_bytes = of_experts * row;
  return cost;
}

double CallCost::start() const { return is_grouped ? kGroupedStart : kStart; }

double CallCost::on_one_sm() const {
  const double moved = is_combine ? local_bytes / kSum : (wire_bytes + local_bytes) / kStore;
  return wire_rows * kRow + moved;
}

double CallCost::microseconds(int sms) const {
  return start() + std::hypot(wire_bytes / kLink, on_one_sm() / std::max(1, sms));
}

int CallCost::enough_sms(int most) const {
  if (is_packed) return std::max(1, most);
  const double link = wire_bytes / kLink;
  const double left = 1.03 * microseconds(most) - start();  // above `link`, as hypot() of the most is
  const double enough = on_one_sm() / std::sqrt(left * left - link * link);
  return std::clamp(static_cast<int>(std::ceil(enough)), 1, std::max(1, most));
}

}  // namespace heddle
