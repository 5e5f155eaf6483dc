#include "spec/plan.hpp"

namespace heddle::spec {
namespace {

void say_destinations(const World& world, const Batch& batch, Plan& plan) {
  for (int token = 0; token < batch.tokens; ++token) {
    for (int rank = 0; rank < world.ranks; ++rank) plan.in_rank.push_back(reaches(world, batch, token, rank));
  }
  plan.send_offset = {0};
  for (int rank = 0; rank < world.ranks; ++rank) {
    for (int token = 0; token < batch.tokens; ++token) {
      if (reaches(world, batch, token, rank)) plan.send_tokens.push_back(token);
    }
    plan.send_offset.push_back(static_cast<std::int32_t>(plan.send_tokens.size()));
  }
}

void count_experts(const World& world, const Batch& batch, Plan& plan) {
  plan.pairs_per_expert.assign(world.experts, 0);
  plan.rows_per_expert.assign(world.experts, 0);
  for (int token = 0; token < batch.tokens; ++token) {
    for (int k = 0; k < world.topk; ++k) {
      const std::int32_t id = id_at(world, batch, token, k);
      const bool first = is_first_column(world, batch, token, k);
      plan.ordinal.push_back(first ? plan.rows_per_expert[id] : -1);
      if (id >= 0) ++plan.pairs_per_expert[id];
      if (first) ++plan.rows_per_expert[id];
    }
  }
}

}  // namespace

std::vector<Plan> plan(const World& world) {
  check(world);
  std::vector<Plan> plans(world.ranks);
  for (int rank = 0; rank < world.ranks; ++rank) {
    plans[rank].ids = world.batches[rank].ids;
    say_destinations(world, world.batches[rank], plans[rank]);
    count_experts(world, world.batches[rank], plans[rank]);
  }
  return plans;
}

}  // namespace heddle::spec
