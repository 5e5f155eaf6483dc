#include "world/inputs.hpp"

#include <algorithm>
#include <cstring>

#include "support/rank_memory.hpp"

namespace heddle::testing {
namespace {

constexpr int64_t kGap = 16;  // bytes between rows that lie apart

template <class T>
TensorView table(const std::vector<T>& values, DType dtype, int64_t rows, int64_t columns) {
  static T nothing{};  // a tensor without elements still has an address
  const T* data = values.empty() ? &nothing : values.data();
  return view_of(const_cast<T*>(data), dtype, {rows, columns});
}

}  // namespace

Inputs::Inputs(const Case& c, const Meaning& m, int rank)
    : case_(c), meaning_(m), batch_(m.world.batches[rank]), rank_(rank), wide_ids_(batch_.ids.begin(), batch_.ids.end()) {
  if (!c.strided) return;
  const int64_t bytes = m.world.row_bytes;
  apart_.resize(static_cast<size_t>(batch_.tokens * (bytes + kGap)), std::byte{0x7F});
  for (int64_t token = 0; token < batch_.tokens; ++token) {
    std::copy_n(batch_.rows.begin() + token * bytes, bytes, apart_.begin() + token * (bytes + kGap));
  }
  const int64_t words = m.world.scale_words;
  column_major_.resize(batch_.scales.size());
  for (int64_t i = 0; i < static_cast<int64_t>(batch_.scales.size()); ++i) {
    column_major_[i % words * batch_.tokens + i / words] = batch_.scales[i];
  }
}

Plan Inputs::plan(Buffer& buffer) const {
  if (case_.by_rank_map) {
    return buffer.plan_from_rank_map(lend(table(batch_.rank_map, DType::u8, batch_.tokens, meaning_.world.ranks)));
  }
  if (case_.wide_ids) return buffer.plan(lend(table(wide_ids_, DType::i64, batch_.tokens, meaning_.world.topk)));
  return buffer.plan(lend(table(batch_.ids, DType::i32, batch_.tokens, meaning_.world.topk)));
}

TensorView Inputs::x_view() const {
  const auto size = static_cast<int64_t>(size_of(case_.world.dtype));
  if (!case_.strided) return table(batch_.rows, case_.world.dtype, batch_.tokens, case_.world.hidden);
  TensorView view = table(apart_, case_.world.dtype, batch_.tokens, case_.world.hidden);
  view.strides = {(meaning_.world.row_bytes + kGap) / size, 1};
  return view;
}

TensorView Inputs::scales_view() const {
  if (case_.world.scale_words == 0) return {};
  if (!case_.strided) return table(batch_.scales, DType::f32, batch_.tokens, case_.world.scale_words);
  TensorView view = table(column_major_, DType::f32, batch_.tokens, case_.world.scale_words);
  view.strides = {1, batch_.tokens};
  return view;
}

DispatchInput Inputs::dispatch_input() const {
  DispatchInput input{.x = lend(x_view()), .scales = lend(scales_view()), .weights = {}};
  if (case_.with_weights && !case_.by_rank_map) {
    input.weights = lend(table(batch_.weights, DType::f32, batch_.tokens, meaning_.world.topk));
  }
  if (case_.quantise == Quantise::nvfp4) {
    input.global_scale = lend(view_of(const_cast<float*>(&case_.global_scale), DType::f32, {1}));
  }
  return input;
}

DispatchOptions Inputs::dispatch_options() const {
  return {.layout = case_.layout, .alignment = case_.alignment, .quantise = case_.quantise,
          .scale_layout = case_.scale_layout,
          .fixed_size = case_.fixed_size, .capacity = case_.capacity, .max_tokens = case_.max_tokens,
          .zero_padding = case_.zero_padding, .drop_overflow = case_.capacity >= 0};
}

CombineInput Inputs::combine_input() const {
  CombineInput input;
  const int64_t rows = meaning_.received[rank_].rows;
  const int64_t tokens = batch_.tokens;
  input.x = lend(table(meaning_.outputs[rank_], case_.in_dtype, rows, case_.world.hidden));
  const auto& biases = meaning_.biases[rank_];
  if (case_.biases > 0) input.bias0 = lend(table(biases[0], case_.out_dtype, tokens, case_.world.hidden));
  if (case_.biases > 1) input.bias1 = lend(table(biases[1], case_.out_dtype, tokens, case_.world.hidden));
  if (case_.row_weights) {
    input.row_weights = lend(table(meaning_.row_weights[rank_], DType::f32, rows, meaning_.world.topk));
    if (case_.layout != Layout::token_major) input.row_weights.shape = {rows};
  }
  if (case_.sum == Sum::late || case_.sum == Sum::alone) {
    input.weights = lend(table(batch_.weights, DType::f32, tokens, meaning_.world.topk));
  }
  return input;
}

CombineOptions Inputs::combine_options() const {
  CombineOptions options{.weighted = case_.sum == Sum::at_owner, .wire = case_.wire,
                         .out_dtype = std::nullopt, .out = {}};
  if (case_.out_dtype != case_.in_dtype) options.out_dtype = case_.out_dtype;
  return options;
}

}  // namespace heddle::testing
