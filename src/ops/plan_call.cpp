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

/// Memory of the allocator's for what a caller wants to keep.
Reach lend_tables(Calls& calls, PlanView& view) {
  const Topology& topo = calls.topology();
  Reach reach{.in_rank = calls.allocate()(DType::u8, {view.tokens, topo.world}),
              .tokens_per_rank = calls.allocate()(DType::i32, {topo.world}),
              .tokens_per_expert = calls.allocate()(DType::i32, {topo.experts})};
  view.in_rank = reach.in_rank.data<uint8_t>();
  view.per_rank = reach.tokens_per_rank.data<int32_t>();
  view.pairs = reach.tokens_per_expert.data<int32_t>();
  return reach;
}

TableView table_of(const TensorView& view) {
  return {.data = view.data, .dtype = view.dtype, .rows = view.dim(0), .columns = view.dim(1),
          .row_stride = view.stride(0), .column_stride = view.stride(1)};
}

int64_t id_at(Backend& backend, const TensorView& ids, int64_t item) {
  const auto size = static_cast<int64_t>(size_of(ids.dtype));
  const std::byte* at = static_cast<const std::byte*>(ids.data) + table_of(ids).at(item) * size;
  int64_t wide = 0;
  int32_t narrow = 0;
  if (ids.dtype == DType::i64) backend.read(&wide, at, sizeof wide);
  else backend.read(&narrow, at, sizeof narrow);
  return ids.dtype == DType::i64 ? wide : narrow;
}

void check_ids(Calls& calls, const TensorView& ids, const IdCheck& check) {
  const uint64_t bad = calls.backend().bad_id(check);
  if (bad == 0) return;
  const auto item = static_cast<int64_t>(bad) - 1;
  require(false, {"ids"}, "plan: ids[{}][{}] = {}, legal: 0 to {}, or -1 for none", item / ids.dim(1), item % ids.dim(1),
       id_at(calls.backend(), ids, item), calls.topology().experts - 1);
}

void begin(Calls& calls, const Placement& on) {
  calls.use(on, on.stream == nullptr);
  calls.backend().wait_for(on.after);
}

void check_ids_table(Calls& calls, const TensorView& ids, const Placement& on) {
  require(ids.shape.size() == 2, {"ids"}, "plan: ids is {}, legal: int32 or int64 [tokens, topk]", ids.describe());
  require(ids.dtype == DType::i32 || ids.dtype == DType::i64, {"ids.dtype"}, "plan: ids is {}, legal: int32 or int64",
          name_of(ids.dtype));
  require(ids.dim(1) >= 1 && ids.dim(1) <= kMaxTopk, {"topk", ids.dim(1), kMaxTopk},
          "plan: topk (ids.shape[1]) = {}, legal: 1 to {}", ids.dim(1), kMaxTopk);
  calls.check_placement("plan", on);
  calls.check_device("plan", "ids", ids);
}

}  // namespace

std::shared_ptr<const PlanData> make_plan_data(Calls& calls, const TensorView& ids, const Placement& on, Reach* reach) {
  check_ids_table(calls, ids, on);
  begin(calls, on);
  auto data = empty_plan(calls, ids.dim(0), ids.dim(1));
  if (reach != nullptr) *reach = lend_tables(calls, data->view);
  data->ids = calls.backend().expect_ids();
  calls.backend().plan_from(table_of(ids), data->ids, data->topo, data->view);
  calls.backend().signal(on.done);
  if (on.stream == nullptr) check_ids(calls, ids, data->ids);
  return data;
}

PlanForDispatch make_plan_for_dispatch(Calls& calls, const TensorView& ids, const Placement& on) {
  if (on.stream == nullptr || !calls.backend().plans_in_dispatch()) {
    Placement here = on;
    here.done = nullptr;
    return {.plan = make_plan_data(calls, ids, here)};
  }
  check_ids_table(calls, ids, on);
  auto data = empty_plan(calls, ids.dim(0), ids.dim(1));
  data->ids = calls.backend().expect_ids();
  return {.plan = std::move(data), .is_made = false, .given = table_of(ids)};
}

std::shared_ptr<const PlanData> make_plan_data_from_map(Calls& calls, const TensorView& map, const Placement& on) {
  const int world = calls.topology().world;
  HEDDLE_CHECK(map.shape.size() == 2 && map.dim(1) == world && map.dtype == DType::u8,
               "plan: is_token_in_rank is {}, legal: bool or uint8 [tokens, {}]", map.describe(), world);
  calls.check_placement("plan", on);
  calls.check_device("plan", "is_token_in_rank", map);
  begin(calls, on);
  auto data = empty_plan(calls, map.dim(0), 0);
  calls.backend().take_map(table_of(map), data->view.in_rank);
  calls.backend().plan(data->topo, data->view);
  calls.backend().signal(on.done);
  return data;
}

}  // namespace heddle
