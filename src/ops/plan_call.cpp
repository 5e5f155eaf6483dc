#include "ops/plan_call.hpp"

#include <algorithm>

namespace heddle {
namespace {

std::shared_ptr<PlanData> empty_plan(Calls& calls, int64_t tokens, int64_t topk) {
  HEDDLE_CHECK(tokens <= INT32_MAX, "plan: {} tokens, at most {}", tokens, INT32_MAX);
  const Topology& topo = calls.topology();
  Backend& backend = calls.backend();
  auto data = std::make_shared<PlanData>(backend);
  Arena& arena = data->arena;
  const int64_t per_token = topk > 0 ? std::min<int64_t>(topk, topo.world) : topo.world;
  data->topo = topo;
  data->buffer = calls.id();
  data->has_ids = topk > 0;
  data->view = {.tokens = static_cast<int32_t>(tokens), .topk = static_cast<int32_t>(topk),
                .ids = arena.take<int32_t>(tokens * topk), .ordinals = arena.take<int32_t>(tokens * topk),
                .in_rank = arena.take<uint8_t>(tokens * topo.world), .per_rank = arena.take<int32_t>(topo.world),
                .send_offset = arena.take<int32_t>(topo.world + 1),
                .send_tokens = arena.take<int32_t>(tokens * per_token), .pairs = arena.take<int32_t>(topo.experts),
                .rows = arena.take<int32_t>(topo.experts),
                .scratch = arena.take<int32_t>(plan_scratch_words(topo, backend.plan_lanes()))};
  return data;
}

template <class Id>
void copy_ids(const TensorView& ids, const Topology& topo, int32_t* to) {
  const auto* from = static_cast<const Id*>(ids.data);
  for (int64_t token = 0; token < ids.dim(0); ++token) {
    for (int64_t k = 0; k < ids.dim(1); ++k) {
      const int64_t id = from[token * ids.stride(0) + k * ids.stride(1)];
      HEDDLE_CHECK(id >= -1 && id < topo.experts, "plan: ids[{}][{}] = {}, legal: 0 to {}, or -1 for none", token, k,
                   id, topo.experts - 1);
      *to++ = static_cast<int32_t>(id);
    }
  }
}

}  // namespace

std::shared_ptr<const PlanData> make_plan_data(Calls& calls, const TensorView& ids) {
  HEDDLE_CHECK(ids.shape.size() == 2, "plan: ids is {}, legal: int32 or int64 [tokens, topk]", ids.describe());
  HEDDLE_CHECK(ids.dtype == DType::i32 || ids.dtype == DType::i64, "plan: ids is {}, legal: int32 or int64",
               name_of(ids.dtype));
  HEDDLE_CHECK(ids.dim(1) >= 1 && ids.dim(1) <= kMaxTopk, "plan: topk (ids.shape[1]) = {}, legal: 1 to {}", ids.dim(1),
               kMaxTopk);
  auto data = empty_plan(calls, ids.dim(0), ids.dim(1));
  if (ids.dtype == DType::i32) copy_ids<int32_t>(ids, data->topo, data->view.ids);
  else copy_ids<int64_t>(ids, data->topo, data->view.ids);
  calls.backend().plan(data->topo, data->view);
  return data;
}

std::shared_ptr<const PlanData> make_plan_data_from_map(Calls& calls, const TensorView& map) {
  const int world = calls.topology().world;
  HEDDLE_CHECK(map.shape.size() == 2 && map.dim(1) == world && map.dtype == DType::u8,
               "plan: is_token_in_rank is {}, legal: bool or uint8 [tokens, {}]", map.describe(), world);
  auto data = empty_plan(calls, map.dim(0), 0);
  const auto* from = static_cast<const uint8_t*>(map.data);
  for (int64_t token = 0; token < map.dim(0); ++token) {
    for (int64_t rank = 0; rank < world; ++rank) {
      data->view.in_rank[token * world + rank] = from[token * map.stride(0) + rank * map.stride(1)] != 0;
    }
  }
  calls.backend().plan(data->topo, data->view);
  return data;
}

}  // namespace heddle
