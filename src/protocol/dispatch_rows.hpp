// One row of a dispatch: how it is written at its sender and placed at its receiver, by the lanes of one worker.
#pragma once

#include <cstdint>

#include "device/copy.hpp"
#include "device/quantise.hpp"
#include "layout/slot.hpp"
#include "protocol/dispatch_args.hpp"

namespace heddle {

inline constexpr int32_t kDropped = -2;  // in row_of: a hit past the output's capacity

struct RowWriter {
  const DispatchArgs& args;
  int token;
  Slot slot;

  /// The payload to `payload`, all else to the slot `at`; for a staged row both are the slot.
  template <class Coop>
  HEDDLE_HD void write(const Coop& coop, std::byte* payload, std::byte* at) const {
    const Shape& shape = args.call.shape;
    const std::byte* x = args.batch.x + token * args.batch.x_stride;
    if (shape.quantise == Quantise::none) {
      copy_bytes(coop, payload, x, static_cast<size_t>(shape.payload_bytes));
      const uint32_t* scales = args.batch.scales + token * args.batch.scale_row_stride;
      if (shape.scale_words > 0) {
        copy_strided_words(coop, {reinterpret_cast<uint32_t*>(at + slot.scales), 1},
                           {scales, args.batch.scale_col_stride}, shape.scale_words);
      }
    } else {
      quantise_row(coop, QuantiseArgs{.x = x, .x_dtype = shape.dtype, .hidden = shape.payload_bytes,
                                      .mode = shape.quantise, .q = reinterpret_cast<uint8_t*>(payload),
                                      .scales = at + slot.scales});
    }
    write_route(coop, at);
  }

 private:
  template <class Coop>
  HEDDLE_HD void write_route(const Coop& coop, std::byte* at) const {
    const int64_t topk = args.call.shape.topk;
    if (coop.lane() == 0) *reinterpret_cast<int32_t*>(at + slot.token) = token;
    for (int64_t k = coop.lane(); k < topk; k += coop.lanes()) {
      reinterpret_cast<int32_t*>(at + slot.ids)[k] = args.plan.ids[token * topk + k];
      reinterpret_cast<int32_t*>(at + slot.ordinals)[k] = args.plan.ordinals[token * topk + k];
      const float* weights = args.batch.weights;
      reinterpret_cast<float*>(at + slot.weights)[k] = weights == nullptr ? 0.0f : weights[token * topk + k];
    }
  }
};

struct RowReader {
  const DispatchArgs& args;
  int source;
  const std::byte* at;  // the slot
  Slot slot;
  bool direct;  // the payload is at the first hit's row already

  /// `i` is the row's number among all received ones.
  template <class Coop>
  HEDDLE_HD void place(const Coop& coop, int64_t i) const {
    if (i >= args.route.capacity) return;
    place_route(coop, i);
    if (args.call.shape.layout == Layout::token_major) place_token(coop, i);
    else place_hits(coop, i);
  }

 private:
  HEDDLE_HD const int32_t* ids() const { return reinterpret_cast<const int32_t*>(at + slot.ids); }
  HEDDLE_HD const int32_t* ordinals() const { return reinterpret_cast<const int32_t*>(at + slot.ordinals); }
  HEDDLE_HD const float* weights() const { return reinterpret_cast<const float*>(at + slot.weights); }
  HEDDLE_HD int32_t token() const { return *reinterpret_cast<const int32_t*>(at + slot.token); }

  /// The local id of column k; -1 if its expert lives elsewhere.
  HEDDLE_HD int32_t local_id(int64_t k) const {
    const Topology& topo = args.call.ctx.topo;
    const int32_t local = ids()[k] - topo.first_expert(topo.rank);
    return ids()[k] >= 0 && local >= 0 && local < topo.num_local(topo.rank) ? local : -1;
  }

  template <class Coop>
  HEDDLE_HD void place_route(const Coop& coop, int64_t i) const {
    const int64_t topk = args.call.shape.topk;
    if (coop.lane() == 0) args.route.recv_token[i] = token();
    for (int64_t k = coop.lane(); k < topk; k += coop.lanes()) {
      args.route.recv_ids[i * topk + k] = local_id(k);
      args.route.recv_weights[i * topk + k] = local_id(k) >= 0 ? weights()[k] : 0.0f;
    }
  }

  template <class Coop>
  HEDDLE_HD void place_token(const Coop& coop, int64_t row) const {
    const OutputView& out = args.out;
    if (row >= out.rows) return;
    place_payload(coop, row, direct ? nullptr : at);
    const int64_t topk = args.call.shape.topk;
    for (int64_t k = coop.lane(); k < topk; k += coop.lanes()) {
      const int32_t local = local_id(k);
      if (out.ids != nullptr) out.ids[row * topk + k] = local;
      if (out.weights != nullptr) out.weights[row * topk + k] = local >= 0 ? weights()[k] : 0.0f;
    }
    place_source(coop, row);
  }

  template <class Coop>
  HEDDLE_HD void place_hits(const Coop& coop, int64_t i) const {
    const int topk = args.call.shape.topk;
    const std::byte* payload = direct ? nullptr : at;
    for (int k = 0; k < topk; ++k) {
      const int64_t row = row_of(k);
      if (coop.lane() == 0) args.route.row_of[i * topk + k] = row < args.out.rows ? static_cast<int32_t>(row) : kDropped;
      if (row < 0 || row >= args.out.rows) continue;
      place_payload(coop, row, payload);
      if (payload == nullptr) payload = args.out.x + row * args.call.shape.payload_bytes;
      if (coop.lane() == 0) args.out.row_weights[row] = weight_of(k);
      place_source(coop, row);
    }
  }

  /// Row of the hit at column k; -1 if it is not local, or not its expert's first column.
  HEDDLE_HD int64_t row_of(int k) const {
    const int32_t local = local_id(k);
    if (local < 0 || ordinals()[k] < 0) return -1;
    return int64_t{args.route.expert_row[local * args.call.ctx.topo.world + source]} + ordinals()[k];
  }

  /// An expert chosen twice has the sum of the weights (duplicates rule).
  HEDDLE_HD float weight_of(int k) const {
    float sum = weights()[k];
    for (int later = k + 1; later < args.call.shape.topk; ++later) {
      if (ids()[later] == ids()[k]) sum += weights()[later];
    }
    return sum;
  }

  template <class Coop>
  HEDDLE_HD void place_payload(const Coop& coop, int64_t row, const std::byte* payload) const {
    const Shape& shape = args.call.shape;
    if (payload != nullptr) {
      copy_bytes(coop, args.out.x + row * shape.payload_bytes, payload, static_cast<size_t>(shape.payload_bytes));
    }
    if (shape.scale_words == 0) return;
    copy_strided_words(coop, {args.out.scales.row(row), args.out.scales.col_stride},
                       {reinterpret_cast<const uint32_t*>(at + slot.scales), 1}, shape.scale_words);
  }

  template <class Coop>
  HEDDLE_HD void place_source(const Coop& coop, int64_t row) const {
    if (coop.lane() != 0) return;
    if (args.out.row_source != nullptr) args.out.row_source[row] = source;
    if (args.out.row_token != nullptr) args.out.row_token[row] = token();
  }
};

/// Leaves nothing in a row of the output.
template <class Coop>
HEDDLE_HD void clear_row(const Coop& coop, const DispatchArgs& args, int64_t row) {
  const OutputView& out = args.out;
  const auto bytes = static_cast<size_t>(args.call.shape.payload_bytes);
  zero_bytes(coop, out.x + row * args.call.shape.payload_bytes, bytes);
  for (int i = coop.lane(); i < args.call.shape.scale_words; i += coop.lanes()) {
    out.scales.row(row)[i * out.scales.col_stride] = 0;
  }
  if (coop.lane() != 0) return;
  if (out.row_weights != nullptr) out.row_weights[row] = 0.0f;
  if (out.row_source != nullptr) out.row_source[row] = -1;
  if (out.row_token != nullptr) out.row_token[row] = -1;
}

/// Takes back what was placed of the i-th received row, whose source was masked meanwhile.
template <class Coop>
HEDDLE_HD void drop_row(const Coop& coop, const DispatchArgs& args, int64_t i) {
  const int64_t topk = args.call.shape.topk;
  if (i >= args.route.capacity) return;
  const bool token_major = args.call.shape.layout == Layout::token_major;
  for (int64_t k = coop.lane(); k < topk; k += coop.lanes()) {
    args.route.recv_ids[i * topk + k] = -1;
    args.route.recv_weights[i * topk + k] = 0.0f;
    if (!token_major) args.route.row_of[i * topk + k] = -1;
    if (token_major && i < args.out.rows && args.out.ids != nullptr) args.out.ids[i * topk + k] = -1;
    if (token_major && i < args.out.rows && args.out.weights != nullptr) args.out.weights[i * topk + k] = 0.0f;
  }
  if (coop.lane() == 0) args.route.recv_token[i] = -1;
  if (token_major && i < args.out.rows) clear_row(coop, args, i);
}

}  // namespace heddle
