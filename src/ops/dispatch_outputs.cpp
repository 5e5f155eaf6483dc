// The memory that a dispatch fills: how much, and where.
#include <algorithm>
#include <functional>
#include <numeric>

#include "base/math.hpp"
#include "device/quantise_args.hpp"
#include "ops/dispatch_call.hpp"
#include "protocol/call.hpp"

namespace heddle {

int64_t DispatchCall::worst_received() const {
  return int64_t{calls_.topology().world} * max_tokens_;
}

int64_t DispatchCall::worst_rows() const {
  const Topology& topo = calls_.topology();
  const int64_t local = topo.num_local(topo.rank);
  const int64_t alignment = options_.alignment;
  switch (options_.layout) {
    case Layout::token_major: return worst_received();
    case Layout::slab: return local * worst_received();
    case Layout::expert_major: break;
  }
  const int64_t hits = std::min<int64_t>(plan_->view.topk, local);
  return round_up(worst_received() * hits + (alignment - 1) * local, alignment);
}

/// Tables whose size is known before any header.
void DispatchCall::take_tables() {
  route_ = std::make_shared<Route>(calls_.backend());
  Arena& arena = route_->arena;
  const Topology& topo = calls_.topology();
  const int64_t local = topo.num_local(topo.rank);
  route_->plan = plan_;
  route_->layout = options_.layout;
  route_->max_tokens = max_tokens_;
  route_->alignment = options_.alignment;
  route_->fixed_size = fixed_;
  route_->has_weights = input_.weights.is_set();
  route_->buffer = calls_.id();
  route_->incarnation = calls_.incarnation();
  result_.handle.route = route_;
  RouteView& view = route_->view;
  view.recv_offset = arena.take<int32_t>(topo.world + 1);
  view.source_tokens = arena.take<int32_t>(topo.world);
  view.status = arena.take<uint8_t>(topo.world);
  view.send_row = arena.take<int32_t>(std::max(topo.world, topo.experts));
  const bool few = options_.few_outputs;
  const bool tells_counts = !fixed_;  // the host waits for sizes anyway
  args_.out.host_counts = tells_counts ? calls_.host_counts() : nullptr;
  args_.out.counts = take<int32_t>(result_.num_per_expert, DType::i32, {local}, few && tells_counts);
  args_.out.num_dropped = take<int64_t>(result_.dropped, DType::i64, {1}, few);
  if (options_.layout != Layout::token_major) {
    view.expert_row = arena.take<int32_t>(local * topo.world);
    args_.out.expert_offsets = take<int64_t>(result_.expert_offsets, DType::i64, {local + 1}, few);
  }
  if (options_.layout == Layout::slab) {
    result_.layout_range = make(DType::i64, {local, topo.world});
    args_.out.layout_range = result_.layout_range.data<int64_t>();
  }
  args_.route = view;
}

Tensor DispatchCall::make(DType dtype, std::vector<int64_t> shape) {
  return calls_.allocate()(dtype, std::move(shape));
}

/// Where an output goes; if it is waived, to memory that lives as long as the call.
template <class T>
T* DispatchCall::take(Tensor& tensor, DType dtype, const std::vector<int64_t>& shape, bool waived) {
  if (waived) return waived_.take<T>(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
  tensor = make(dtype, shape);
  return tensor.data<T>();
}

Tensor DispatchCall::make_x(int64_t rows) {
  const Shape& shape = args_.call.shape;
  const int64_t columns = shape.payload_bytes / static_cast<int64_t>(size_of(shape.wire));
  const bool is_slab = options_.layout == Layout::slab;
  const int64_t group = is_slab ? worst_received() : 0;
  const auto dims = is_slab ? std::vector<int64_t>{group > 0 ? rows / group : 0, group, columns}
                            : std::vector<int64_t>{rows, columns};
  if (!calls_.has_own_allocator()) {
    if (Tensor x = make_x_in_heap(rows, dims); x.is_set()) return x;
  }
  Tensor x = make(shape.wire, dims);
  offer_if_in_heap(x, rows);
  return x;
}

Tensor DispatchCall::make_x_in_heap(int64_t rows, const std::vector<int64_t>& dims) {
  const Shape& shape = args_.call.shape;
  if (!offers_rows(args_.call.ctx, shape) || !calls_.parts().heap) return {};
  auto block = calls_.parts().heap(rows * shape.payload_bytes);
  if (!block) return {};
  calls_.backend().keep(block->memory);
  args_.offer = {.is_set = true, .offset = block->offset};
  const TensorView view{.data = block->memory.get(), .dtype = shape.wire, .shape = dims, .strides = {},
                        .device = calls_.backend().device()};
  return {view, std::move(block->memory)};
}

/// The caller's allocator may take memory of the heap, too.
void DispatchCall::offer_if_in_heap(const Tensor& x, int64_t rows) {
  const Shape& shape = args_.call.shape;
  if (!offers_rows(args_.call.ctx, shape) || !calls_.parts().heap_offset) return;
  const auto offset = calls_.parts().heap_offset(x.view.data, rows * shape.payload_bytes);
  if (offset) args_.offer = {.is_set = true, .offset = *offset};
}

/// Row-major, or column-major in each expert of a slab, as grouped GEMMs read them; or tiles.
void DispatchCall::take_scales(int64_t rows) {
  const int64_t words = args_.call.shape.scale_words;
  if (words == 0) return;
  const Quantise mode = options_.quantise;
  const DType dtype = mode == Quantise::none ? input_.scales.dtype : has_byte_scales(mode) ? DType::i32 : DType::f32;
  const bool is_slab = options_.layout == Layout::slab;
  const int64_t group = is_slab ? worst_received() : rows;
  const int64_t experts = is_slab && group > 0 ? rows / group : 0;
  Tensor& scales = result_.scales;
  ScaleView& view = args_.out.scales;
  if (options_.scale_layout == ScaleLayout::tiles) {
    const int64_t tiles = ceil_div(group, kTileRows);
    scales = make(dtype, is_slab ? std::vector<int64_t>{experts, tiles, words, 32, 4}
                                 : std::vector<int64_t>{tiles, words, 32, 4});
    view = ScaleView::by_tiles(words, group);
  } else if (is_slab) {
    scales = make(dtype, {experts, words, group});
    scales.view.shape = {experts, group, words};
    scales.view.strides = {words * group, 1, group};
    view = ScaleView::by_columns(words, group);
  } else {
    scales = make(dtype, {rows, words});
    view = ScaleView::by_rows(words);
  }
  view.words = scales.data<uint32_t>();
}

void DispatchCall::take_outputs(int64_t received, int64_t rows) {
  const int64_t topk = plan_->view.topk;
  const bool token_major = options_.layout == Layout::token_major;
  Arena& arena = route_->arena;
  RouteView& view = route_->view;
  view.capacity = received;
  view.recv_token = arena.take<int32_t>(received);
  view.recv_ids = arena.take<int32_t>(received * topk);
  view.recv_weights = arena.take<float>(received * topk);
  if (!token_major) view.row_of = arena.take<int32_t>(received * topk);
  route_->rows = rows;
  args_.route = view;

  OutputView& out = args_.out;
  result_.x = make_x(rows);
  out.x = result_.x.data<std::byte>();
  out.rows = rows;
  out.zero_padding = options_.zero_padding;
  take_scales(rows);
  if (token_major && topk > 0) {
    const bool wide = options_.wide_ids;
    result_.ids = make(wide ? DType::i64 : DType::i32, {rows, topk});
    result_.weights = make(DType::f32, {rows, topk});
    out.ids = wide ? nullptr : result_.ids.data<int32_t>();
    out.wide_ids = wide ? result_.ids.data<int64_t>() : nullptr;
    out.weights = result_.weights.data<float>();
  }
  take_places(rows);
}

/// Of each row: whence it came, and the weight of a grouped one.
void DispatchCall::take_places(int64_t rows) {
  const bool token_major = options_.layout == Layout::token_major, is_slab = options_.layout == Layout::slab;
  const bool few = options_.few_outputs, waives_weights = few && !input_.weights.is_set();
  const int64_t group = worst_received();
  const bool by_group = few && is_slab && group > 0;
  OutputView& out = args_.out;
  if (!token_major) out.row_weights = take<float>(result_.weights, DType::f32, {rows}, waives_weights);
  if (!few || !token_major) out.row_source = take<int32_t>(result_.row_source, DType::i32, {rows}, waives_weights);
  if (few && !is_slab) return;
  const auto places = by_group ? std::vector<int64_t>{rows / group, group} : std::vector<int64_t>{rows};
  out.row_token = take<int32_t>(result_.row_token, DType::i32, places, false);
}

}  // namespace heddle
