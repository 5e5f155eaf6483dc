#include "support/step_rank.hpp"

#include <algorithm>

#include "base/math.hpp"
#include "protocol/call_header.hpp"
#include "support/dice.hpp"

namespace heddle::testing {
StepRank::StepRank(Machine& machine, const spec::World& world, const Topology& topo, const MachineOptions& options)
    : machine_(machine), world_(world), batch_(world.batches[static_cast<size_t>(topo.rank)]), topo_(topo),
      memory_(machine, options.fills) {
  ctx_ = {.topo = topo,
          .window = Window(topo.world, static_cast<int64_t>(options.window_bytes), options.words),
          .ledger = memory_.take<Ledger>(1, 0),
          .timeout_ns = static_cast<uint64_t>(options.timeout.count()),
          .mask_late_peers = options.masks_late,
          .in_place = machine.has_heap(),
          .tags = options.tags};
}

Ledger StepRank::ledger() { return memory_.at(ctx_.ledger); }
CallState StepRank::state() { return memory_.at(dispatch_.call.state); }

void StepRank::take_plan(bool wide_ids) {
  const int64_t tokens = batch_.tokens;
  const int64_t pairs = tokens * world_.topk;
  const bool by_map = world_.topk == 0;
  plan_ = {.tokens = batch_.tokens,
           .topk = world_.topk,
           .ids = wide_ids ? memory_.take<int32_t>(pairs) : memory_.upload(batch_.ids),
           .ordinals = memory_.take<int32_t>(pairs),
           .in_rank = by_map ? memory_.upload(batch_.rank_map) : memory_.take<uint8_t>(tokens * topo_.world),
           .per_rank = memory_.take<int32_t>(topo_.world),
           .send_offset = memory_.take<int32_t>(topo_.world + 1),
           .send_tokens = memory_.take<int32_t>(tokens * topo_.world),
           .pairs = memory_.take<int32_t>(topo_.experts),
           .rows = memory_.take<int32_t>(topo_.experts),
           .scratch = memory_.take<int32_t>(plan_scratch_words(topo_, machine_.backend().plan_lanes()))};
  ids_ = {};
  if (!wide_ids) return;
  // By columns, with a row of something else between.
  std::vector<int64_t> wide(static_cast<size_t>(pairs + world_.topk), int64_t{1} << 40);
  for (int64_t i = 0; i < pairs; ++i) {
    wide[static_cast<size_t>(i % world_.topk * (tokens + 1) + i / world_.topk)] = batch_.ids[static_cast<size_t>(i)];
  }
  ids_ = {.data = memory_.upload(wide),
          .dtype = DType::i64,
          .rows = tokens,
          .columns = world_.topk,
          .row_stride = 1,
          .column_stride = tokens + 1};
}

Tables StepRank::plan() {
  take_plan();
  machine_.backend().plan(topo_, plan_);
  return planned();
}

Tables StepRank::plan_from_table(uint64_t* bad) {
  take_plan(true);
  IdCheck check;
  machine_.backend().plan_from(ids_, check, topo_, plan_);
  if (bad != nullptr) *bad = check.bad;
  return planned();
}

Tables StepRank::planned() {
  const int64_t pairs = int64_t{batch_.tokens} * world_.topk;
  const auto words = [](int64_t count) { return static_cast<size_t>(count) * sizeof(int32_t); };
  const auto sends = memory_.at(plan_.send_offset + topo_.world);
  return memory_.dump({{"ids", plan_.ids, words(pairs)},
                       {"ordinals", plan_.ordinals, words(pairs)},
                       {"in_rank", plan_.in_rank, static_cast<size_t>(int64_t{batch_.tokens} * topo_.world)},
                       {"per_rank", plan_.per_rank, words(topo_.world)},
                       {"send_offset", plan_.send_offset, words(topo_.world + 1)},
                       {"send_tokens", plan_.send_tokens, words(sends)},
                       {"pairs", plan_.pairs, words(topo_.experts)},
                       {"rows", plan_.rows, words(topo_.experts)}});
}

int64_t StepRank::worst_received() const { return int64_t{topo_.world} * dispatch_case_.max_tokens; }

int64_t StepRank::worst_rows() const {
  const int64_t local = topo_.num_local(topo_.rank);
  if (dispatch_case_.layout == Layout::token_major) return worst_received();
  if (dispatch_case_.layout == Layout::slab) return local * worst_received();
  const int64_t hits = std::min<int64_t>(world_.topk, local);
  return round_up(worst_received() * hits + (dispatch_case_.alignment - 1) * local, dispatch_case_.alignment);
}

void StepRank::take_route() {
  const int64_t local = topo_.num_local(topo_.rank);
  RouteView& route = dispatch_.route;
  route.recv_offset = memory_.take<int32_t>(topo_.world + 1);
  route.source_tokens = memory_.take<int32_t>(topo_.world);
  route.status = memory_.take<uint8_t>(topo_.world);
  route.send_row = memory_.take<int32_t>(std::max(topo_.world, topo_.experts));
  dispatch_.out.counts = memory_.take<int32_t>(local);
  dispatch_.out.num_dropped = memory_.take<int64_t>(1);
  if (dispatch_case_.layout == Layout::token_major) return;
  route.expert_row = memory_.take<int32_t>(local * topo_.world);
  if (dispatch_case_.tells_ready && ready_ == nullptr) ready_ = memory_.take<uint64_t>(local, 0);
  if (dispatch_case_.tells_ready) dispatch_.out.ready = {.words = ready_};
  dispatch_.out.expert_offsets = memory_.take<int64_t>(local + 1);
  if (dispatch_case_.layout == Layout::slab) dispatch_.out.layout_range = memory_.take<int64_t>(local * topo_.world);
}

void StepRank::take_outputs() {
  const Shape& shape = dispatch_.call.shape;
  const int64_t topk = world_.topk;
  const bool token_major = dispatch_case_.layout == Layout::token_major;
  RouteView& route = dispatch_.route;
  OutputView& out = dispatch_.out;
  route.capacity = received_;
  route.recv_token = memory_.take<int32_t>(received_);
  route.recv_ids = memory_.take<int32_t>(received_ * topk);
  route.recv_weights = memory_.take<float>(received_ * topk);
  if (!token_major) route.row_of = memory_.take<int32_t>(received_ * topk);
  out.rows = rows_;
  out.zero_padding = dispatch_case_.zero_padding;
  out.x = take_rows(rows_ * shape.payload_bytes);
  take_scales();
  if (token_major && topk > 0) out.ids = memory_.take<int32_t>(rows_ * topk);
  if (token_major && topk > 0) out.weights = memory_.take<float>(rows_ * topk);
  if (!token_major) out.row_weights = memory_.take<float>(rows_);
  out.row_source = memory_.take<int32_t>(rows_);
  out.row_token = memory_.take<int32_t>(rows_);
}

void StepRank::take_scales() {
  const int64_t words = dispatch_.call.shape.scale_words;
  if (words == 0) return;
  const bool is_slab = dispatch_case_.layout == Layout::slab;
  const int64_t group = is_slab ? worst_received() : rows_;
  const bool tiles = dispatch_case_.scale_layout == ScaleLayout::tiles;
  ScaleView& view = dispatch_.out.scales;
  view = tiles     ? ScaleView::by_tiles(words, group)
         : is_slab ? ScaleView::by_columns(words, group)
                   : ScaleView::by_rows(words);
  const int64_t groups = group > 0 ? rows_ / group : 0;
  scale_words_ = tiles || is_slab ? groups * view.group_stride : rows_ * words;
  view.words = memory_.take<uint32_t>(scale_words_);
}

/// In the heap if the machine has one, which the call then offers.
std::byte* StepRank::take_rows(int64_t bytes) {
  std::byte* heap = machine_.heap(bytes);
  if (heap == nullptr) return memory_.take<std::byte>(bytes);
  memory_.fill(heap, static_cast<size_t>(bytes));
  dispatch_.offer = {.is_set = true};
  return heap;
}

bool StepRank::send_dispatch(const DispatchCase& wanted) {
  prepare_dispatch(wanted);
  return machine_.backend().dispatch_send(dispatch_);
}

bool StepRank::whole_dispatch(const DispatchCase& wanted, bool makes_plan) {
  prepare_dispatch(wanted);
  dispatch_.makes_plan = makes_plan;
  if (makes_plan) dispatch_.ids = ids_;
  return machine_.backend().dispatch(dispatch_);
}

void StepRank::prepare_dispatch(const DispatchCase& wanted) {
  dispatch_case_ = wanted;
  dispatch_ = {};
  dispatch_.call = {
      .ctx = ctx_, .shape = dispatch_shape(world_, wanted), .state = memory_.take<CallState>(1, 0), .refusal = {}};
  dispatch_.plan = plan_;
  dispatch_.batch = {
      .x = memory_.upload(batch_.rows),
      .x_stride = world_.row_bytes,
      .scales = batch_.scales.empty() ? nullptr : memory_.upload(batch_.scales),
      .scale_row_stride = world_.scale_words,
      .scale_col_stride = 1,
      .weights = batch_.weights.empty() ? nullptr : memory_.upload(batch_.weights),
      .global_scale = wanted.global_scale == 0 ? nullptr : memory_.upload(std::vector{wanted.global_scale})};
  take_route();
  const bool is_fixed = wanted.fixed_size || wanted.split || wanted.layout == Layout::slab;
  if (is_fixed) {
    received_ = worst_received();
    rows_ = wanted.capacity >= 0 ? wanted.capacity : worst_rows();
    take_outputs();
  }
}

bool StepRank::read_headers() {
  if (!machine_.backend().dispatch_headers(dispatch_)) return false;
  if (dispatch_.out.x != nullptr) return true;
  received_ = rows_ = memory_.at(dispatch_.route.recv_offset + topo_.world);
  if (dispatch_case_.layout != Layout::token_major) {
    rows_ = memory_.at(dispatch_.out.expert_offsets + topo_.num_local(topo_.rank));
  }
  take_outputs();
  return true;
}

bool StepRank::receive_dispatch() { return machine_.backend().dispatch_receive(dispatch_); }

Tables StepRank::dispatched() {
  const Shape& shape = dispatch_.call.shape;
  const RouteView& route = dispatch_.route;
  const OutputView& out = dispatch_.out;
  const auto local = static_cast<size_t>(topo_.num_local(topo_.rank));
  const auto world = static_cast<size_t>(topo_.world), topk = static_cast<size_t>(world_.topk);
  const auto n = static_cast<size_t>(received_), rows = static_cast<size_t>(rows_);
  return memory_.dump({{"recv_offset", route.recv_offset, 4 * (world + 1)},
                       {"source_tokens", route.source_tokens, 4 * world},
                       {"status", route.status, world},
                       {"recv_token", route.recv_token, 4 * n},
                       {"recv_ids", route.recv_ids, 4 * n * topk},
                       {"recv_weights", route.recv_weights, 4 * n * topk},
                       {"row_of", route.row_of, 4 * n * topk},
                       {"expert_row", route.expert_row, 4 * local * world},
                       {"x", out.x, rows * static_cast<size_t>(shape.payload_bytes)},
                       {"scales", out.scales.words, 4 * static_cast<size_t>(scale_words_)},
                       {"out.ids", out.ids, 4 * rows * topk},
                       {"out.weights", out.weights, 4 * rows * topk},
                       {"row_weights", out.row_weights, 4 * rows},
                       {"counts", out.counts, 4 * local},
                       {"expert_offsets", out.expert_offsets, 8 * (local + 1)},
                       {"ready", out.ready.words, 8 * local},
                       {"row_source", out.row_source, 4 * rows},
                       {"row_token", out.row_token, 4 * rows},
                       {"layout_range", out.layout_range, 8 * local * world},
                       {"num_dropped", out.num_dropped, 8}});
}

bool StepRank::send_combine(const CombineCase& wanted, uint64_t seed) {
  prepare_combine(wanted, seed);
  return machine_.backend().combine_send(combine_);
}

bool StepRank::whole_combine(const CombineCase& wanted, uint64_t seed) {
  prepare_combine(wanted, seed);
  return machine_.backend().combine(combine_);
}

void StepRank::prepare_combine(const CombineCase& wanted, uint64_t seed) {
  combine_case_ = wanted;
  const Shape shape = combine_shape(world_, dispatch_case_, wanted);
  Dice dice(seed * 977 + static_cast<uint64_t>(topo_.rank));
  const auto unit = [&dice] { return static_cast<float>(dice.below(1 << 20)) * 0x1p-20f; };
  const auto random_rows = [&](int64_t rows) {
    std::vector<bf16> values(static_cast<size_t>(rows * world_.hidden));
    uint64_t word = 0;  // four values of it
    for (size_t i = 0; i < values.size(); ++i, word >>= 16) {
      if (i % 4 == 0) word = dice.word();
      values[i] = to_bf16(static_cast<float>(word & 0xffff) * 0x1p-13f - 4);
    }
    return memory_.upload(values);
  };
  const auto random_floats = [&](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = unit();
    return memory_.upload(values);
  };
  const int64_t row_bytes = world_.hidden * static_cast<int64_t>(sizeof(bf16));
  const bool token_major = dispatch_case_.layout == Layout::token_major;
  combine_ = {};
  combine_.call = {.ctx = ctx_, .shape = shape, .state = memory_.take<CallState>(1, 0), .refusal = {}};
  combine_.hidden = world_.hidden;
  combine_.layout = dispatch_case_.layout;
  combine_.plan = plan_;
  combine_.route = dispatch_.route;
  combine_.experts = {.x = reinterpret_cast<const std::byte*>(random_rows(rows_)), .x_stride = row_bytes, .rows = rows_,
                      .dtype = DType::bf16};
  if (wanted.row_weights) combine_.experts.row_weights = random_floats(rows_ * (token_major ? world_.topk : 1));
  combine_.out.x = memory_.take<std::byte>(batch_.tokens * row_bytes);
  combine_.out.x_stride = row_bytes;
  for (int i = 0; i < wanted.biases; ++i) {
    combine_.out.bias[i] = reinterpret_cast<const std::byte*>(random_rows(batch_.tokens));
  }
  if (wanted.weights == Weights::late || wanted.weights == Weights::at_source) {
    combine_.out.weights_in = memory_.upload(batch_.weights);
  }
  if (wanted.row_weights) combine_.out.weights = memory_.take<float>(int64_t{batch_.tokens} * world_.topk);
  combine_.out.status = memory_.take<uint8_t>(topo_.world);
}

CombineArgs StepRank::echo_args(const CombineCase& wanted) {
  const int64_t row_bytes = world_.hidden * static_cast<int64_t>(sizeof(bf16));
  CombineArgs args;
  args.call = {.ctx = ctx_,
               .shape = combine_shape(world_, dispatch_case_, wanted),
               .state = memory_.take<CallState>(1, 0),
               .refusal = {}};
  args.hidden = world_.hidden;
  args.layout = dispatch_case_.layout;
  args.plan = plan_;
  args.route = dispatch_.route;
  args.experts = {.x = dispatch_.out.x, .x_stride = row_bytes, .rows = rows_, .dtype = DType::bf16};
  args.out.x = memory_.take<std::byte>(batch_.tokens * row_bytes);
  args.out.x_stride = row_bytes;
  args.out.status = memory_.take<uint8_t>(topo_.world);
  const bool token_major = dispatch_case_.layout == Layout::token_major;
  if (wanted.row_weights) args.experts.row_weights = memory_.take<float>(rows_ * (token_major ? world_.topk : 1));
  for (int i = 0; i < wanted.biases; ++i) args.out.bias[i] = memory_.take<std::byte>(batch_.tokens * row_bytes);
  const bool gives_weights = wanted.weights == Weights::late || wanted.weights == Weights::at_source;
  if (gives_weights) args.out.weights_in = memory_.upload(batch_.weights);
  if (wanted.row_weights) args.out.weights = memory_.take<float>(int64_t{batch_.tokens} * world_.topk);
  return args;
}

bool StepRank::receive_combine() {
  return machine_.backend().combine_headers(combine_) && machine_.backend().combine_receive(combine_);
}

Tables StepRank::combined() {
  const auto tokens = static_cast<size_t>(batch_.tokens);
  return memory_.dump({{"combined", combine_.out.x, tokens * static_cast<size_t>(world_.hidden) * sizeof(bf16)},
                       {"combined.weights", combine_.out.weights, 4 * tokens * static_cast<size_t>(world_.topk)},
                       {"combined.status", combine_.out.status, static_cast<size_t>(topo_.world)}});
}

}  // namespace heddle::testing
