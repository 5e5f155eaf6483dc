// What a dispatch must be given.
#include <algorithm>

#include "device/quantise_args.hpp"
#include "ops/dispatch_call.hpp"
#include "protocol/call.hpp"

namespace heddle {
namespace {

const char* name_of(Layout layout) {
  switch (layout) {
    case Layout::token_major: return "token_major";
    case Layout::expert_major: return "expert_major";
    case Layout::slab: return "slab";
  }
  return "unknown";
}

}  // namespace

void DispatchCall::check_plan() const {
  require(plan_ != nullptr, {"plan"}, "dispatch: plan is not set; legal: a plan made by this buffer");
  require(plan_->buffer == calls_.id(), {"plan"}, "dispatch: plan was made by another buffer; legal: one of this buffer");
  check_ids();
}

/// On a GPU's stream the plan may still be under way at first.
void DispatchCall::check_ids() const {
  const uint64_t bad = calls_.backend().bad_id(plan_->ids);
  require(bad == 0, {"ids"}, "dispatch: the plan's ids[{}][{}] was not an expert; legal: 0 to {}, or -1 for none",
          (bad - 1) / std::max(1, plan_->view.topk), (bad - 1) % std::max(1, plan_->view.topk), plan_->topo.experts - 1);
}

void DispatchCall::check_x() const {
  const TensorView& x = input_.x;
  const int64_t tokens = plan_->view.tokens;
  require(x.shape.size() == 2, {"x.ndim", static_cast<int64_t>(x.shape.size()), 2},
          "dispatch: x is {}, legal: [tokens, hidden]", x.describe());
  require(x.dim(0) == tokens, {"x.shape[0]", x.dim(0), tokens}, "dispatch: x has {} rows, the plan {} tokens", x.dim(0),
          tokens);
  require(x.has_dense_rows(), {"x.stride(1)", x.stride(1), 1}, "dispatch: x.stride(1) = {}, legal: 1", x.stride(1));
  const int64_t bytes = x.dim(1) * static_cast<int64_t>(size_of(x.dtype));
  require(bytes > 0 && bytes % 16 == 0, {"hidden", x.dim(1), 0},
          "dispatch: hidden (x.shape[1]) = {}, a row of {} bytes; legal: rows of a positive multiple of 16 bytes",
          x.dim(1), bytes);
  calls_.check_device("dispatch", "x", x);
}

void DispatchCall::check_scales() const {
  const TensorView& scales = input_.scales;
  if (!scales.is_set()) return;
  require(options_.quantise == Quantise::none, {"scales"},
          "dispatch: scales were given and quantise too; legal: one of them");
  require(size_of(scales.dtype) == 4, {"scales.itemsize", static_cast<int64_t>(size_of(scales.dtype)), 4},
          "dispatch: scales is {}, legal: a 4-byte type", name_of(scales.dtype));
  require(scales.shape.size() == 2 && scales.dim(0) == plan_->view.tokens,
          {"scales.shape[0]", scales.dim(0), plan_->view.tokens}, "dispatch: scales is {}, legal: [{}, any]",
          scales.describe(), plan_->view.tokens);
  calls_.check_device("dispatch", "scales", scales);
}

void DispatchCall::check_weights() const {
  const TensorView& weights = input_.weights;
  if (!weights.is_set()) return;
  const PlanView& plan = plan_->view;
  require(weights.dtype == DType::f32, {"weights.dtype"}, "dispatch: weights is {}, legal: float32",
          name_of(weights.dtype));
  require(weights.shape.size() == 2 && weights.dim(0) == plan.tokens && weights.dim(1) == plan.topk,
          {"weights.shape", weights.dim(0), plan.tokens}, "dispatch: weights is {}, legal: [{}, {}]",
          weights.describe(), plan.tokens, plan.topk);
  require(weights.is_contiguous(), {"weights.strides"}, "dispatch: weights is not contiguous");
  calls_.check_device("dispatch", "weights", weights);
}

void DispatchCall::check_totals() const {
  const Topology& topo = calls_.topology();
  const TensorView& counts = input_.counts_total;
  const int64_t local = topo.num_local(topo.rank);
  require(!counts.is_set() || (counts.dtype == DType::i32 && counts.numel() == local && counts.is_contiguous()),
          {"counts_total"}, "dispatch: counts_total is {}, legal: contiguous int32 [{}]", counts.describe(), local);
  calls_.check_device("dispatch", "counts_total", counts);
  calls_.check_waits("dispatch", input_.waits_total);
  const TensorView& ready = input_.expert_ready;
  if (!ready.is_set()) return;
  require(ready.dtype == DType::i64 && ready.numel() == local && ready.is_contiguous(), {"expert_ready"},
          "dispatch: expert_ready is {}, legal: contiguous int64 [{}]", ready.describe(), local);
  require(options_.layout != Layout::token_major, {"expert_ready"},
          "dispatch: expert_ready was given with token_major, legal: with expert_major and slab, which group rows by expert");
  calls_.check_device("dispatch", "expert_ready", ready);
}

void DispatchCall::check_quantise() const {
  const Quantise mode = options_.quantise;
  const bool quantises = mode != Quantise::none;
  require(mode <= Quantise::nvfp4, {"quantise", static_cast<int64_t>(mode), static_cast<int64_t>(Quantise::nvfp4)},
          "dispatch: quantise is {}, legal: 0 to 6", static_cast<int>(mode));
  require(!quantises || input_.x.dtype == DType::bf16, {"x.dtype"},
          "dispatch: x is {}, legal with quantise: bfloat16", name_of(input_.x.dtype));
  const bool has_bytes = has_byte_scales(mode) || input_.scales.is_set();
  require(options_.scale_layout != ScaleLayout::tiles || has_bytes, {"scale_layout"},
          "dispatch: scale_layout is tiles, legal with quantise {}: usual (tiles hold scales of a byte: fp8_ue8m0, "
          "mxfp8, nvfp4, the caller's)",
          static_cast<int>(mode));
  const TensorView& global = input_.global_scale;
  if (!global.is_set()) return;
  require(mode == Quantise::nvfp4, {"global_scale"},
          "dispatch: global_scale was given with quantise {}, legal: with nvfp4 (6)", static_cast<int>(mode));
  require(global.dtype == DType::f32 && global.numel() == 1, {"global_scale", global.numel(), 1},
          "dispatch: global_scale is {}, legal: one float32", global.describe());
  calls_.check_device("dispatch", "global_scale", global);
}

void DispatchCall::check_options() const {
  const PlanView& plan = plan_->view;
  calls_.check_placement("dispatch", options_.on);
  require(fixed_ || !is_captured(), {"fixed_size"}, "dispatch: fixed_size is false, legal in a captured call: true");
  require(options_.alignment >= 1, {"alignment", options_.alignment, 1}, "dispatch: alignment = {}, legal: 1 or more",
          options_.alignment);
  require(plan_->has_ids || options_.layout == Layout::token_major, {"layout"},
          "dispatch: layout {} needs expert ids, but the plan was made from a rank map; legal: token_major",
          name_of(options_.layout));
  const int limit = calls_.config().max_tokens;
  require(options_.max_tokens >= 0 && (limit == 0 || options_.max_tokens <= limit),
          {"max_tokens", options_.max_tokens, limit}, "dispatch: max_tokens = {}, legal: 1 to the buffer's {}",
          options_.max_tokens, limit);
  require(max_tokens_ == 0 || plan.tokens <= max_tokens_, {"tokens", plan.tokens, max_tokens_},
          "dispatch: {} tokens, at most max_tokens = {} (raise max_tokens of the buffer or the call)", plan.tokens,
          max_tokens_);
  require(!fixed_ || max_tokens_ > 0, {"max_tokens", 0, 1},
          "dispatch: fixed-size outputs, slabs and split calls need max_tokens, of the buffer or the call");
  require(options_.capacity < 0 || options_.layout != Layout::slab, {"capacity", options_.capacity, -1},
          "dispatch: capacity = {}, legal with a slab: none", options_.capacity);
  require(options_.capacity < 0 || fixed_, {"capacity", options_.capacity, -1},
          "dispatch: capacity = {} needs fixed_size", options_.capacity);
}

/// What all ranks find alike, since it depends on agreed values only.
void DispatchCall::check_room() const {
  const Call& call = args_.call;
  const Range range = range_of(call);
  const int ranks = call.ctx.topo.world;
  const int64_t slots = call.shape.split ? call.shape.max_tokens : 1;
  const int64_t needed = window_bytes_for(ranks, range.slots + slots * range.stride);
  require(range.count >= slots, {"window_bytes", calls_.parts().window_bytes, needed},
          "dispatch: window_bytes = {} holds {} rows of {} bytes a peer, this call needs {}; legal: {} or more",
          calls_.parts().window_bytes, range.count, range.stride, slots, needed);
  require(!fixed_ || worst_rows() <= INT32_MAX, {"max_tokens", max_tokens_, 0},
          "dispatch: {} rows in the worst case (ranks {} x max_tokens {}), at most {}", worst_rows(), ranks, max_tokens_,
          INT32_MAX);
}

}  // namespace heddle
