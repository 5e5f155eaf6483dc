// One row of a dispatch: how it is written at its sender and placed at its receiver, by the lanes of one worker.
#pragma once

#include <cstdint>

#include "device/copy.hpp"
#include "device/quantise.hpp"
#include "device/told.hpp"
#include "layout/slot.hpp"
#include "protocol/dispatch_args.hpp"

namespace heddle {

inline constexpr int32_t kDropped = -2;  // in row_of: a hit past the output's capacity

/// Words of one lane that are loaded before the payload is moved and stored behind it: one wait for memory, not two.
template <class Word, int kMost>
struct HeldWords {
  Word words[kMost] = {};

  template <class Coop, class Load>
  HEDDLE_HD HeldWords(const Coop& coop, int64_t count, const Load& load) {
    for (int h = 0; h < kMost; ++h) {
      const int64_t i = coop.lane() + int64_t{h} * coop.lanes();
      if (i < count) words[h] = load(i);
    }
  }

  /// What no lane held is loaded now.
  template <class Coop, class Load, class Store>
  HEDDLE_HD void store(const Coop& coop, int64_t count, const Load& load, const Store& store) const {
    for (int h = 0; h < kMost; ++h) {
      const int64_t i = coop.lane() + int64_t{h} * coop.lanes();
      if (i < count) store(i, words[h]);
    }
    for (int64_t i = coop.lane() + int64_t{kMost} * coop.lanes(); i < count; i += coop.lanes()) store(i, load(i));
  }
};

struct RouteWord {
  int32_t id;
  int32_t ordinal;
  float weight;
};

struct RowWriter {
  const DispatchArgs& args;
  int token;
  Slot slot;

  /// The payload to `payload`, all else to the slot `at`; for a staged row both are the slot.
  template <class Coop>
  HEDDLE_HD void write(const Coop& coop, std::byte* payload, std::byte* at) const {
    const Shape& shape = args.call.shape;
    const int64_t topk = shape.topk;
    const std::byte* x = args.batch.x + token * args.batch.x_stride;
    const bool as_given = shape.quantise == Quantise::none;
    const int64_t scale_words = as_given ? shape.scale_words : 0;
    const auto load_route = [&](int64_t k) {
      const int64_t i = token * topk + k;
      const float* weights = args.batch.weights;
      return RouteWord{args.plan.ids[i], args.plan.ordinals[i], weights == nullptr ? 0.0f : weights[i]};
    };
    const auto load_scale = [&](int64_t i) {
      return args.batch.scales[token * args.batch.scale_row_stride + i * args.batch.scale_col_stride];
    };
    const HeldWords<RouteWord, 1> route(coop, topk, load_route);
    const HeldWords<uint32_t, 2> scales(coop, scale_words, load_scale);
    if (as_given) {
      copy_bytes(coop, payload, x, static_cast<size_t>(shape.payload_bytes));
    } else {
      quantise_row(coop, QuantiseArgs{.x = x, .x_dtype = shape.dtype,
                                      .hidden = quantised_hidden(shape.payload_bytes, shape.quantise),
                                      .mode = shape.quantise, .q = reinterpret_cast<uint8_t*>(payload),
                                      .scales = at + slot.scales, .global_scale = args.batch.global_scale});
    }
    scales.store(coop, scale_words, load_scale, [&](int64_t i, uint32_t word) {
      reinterpret_cast<uint32_t*>(at + slot.scales)[i] = word;
    });
    if (coop.lane() == 0) *reinterpret_cast<int32_t*>(at + slot.token) = token;
    route.store(coop, topk, load_route, [&](int64_t k, const RouteWord& word) {
      reinterpret_cast<int32_t*>(at + slot.ids)[k] = word.id;
      reinterpret_cast<int32_t*>(at + slot.ordinals)[k] = word.ordinal;
      reinterpret_cast<float*>(at + slot.weights)[k] = word.weight;
    });
  }
};

/// A row as it lies at its receiver: in a slot, or still in the batch of a rank that is its own peer.
struct ArrivedRow {
  const std::byte* payload = nullptr;  // null: at the first hit's row already
  Strided<const uint32_t> scales{};
  const int32_t* ids = nullptr;
  const int32_t* ordinals = nullptr;
  const float* weights = nullptr;      // null: zeros
  const int32_t* token_at = nullptr;   // null: `token`
  int32_t token = -1;

  HEDDLE_HD static ArrivedRow in_slot(const std::byte* at, const Slot& slot, bool direct) {
    return {.payload = direct ? nullptr : at,
            .scales = {reinterpret_cast<const uint32_t*>(at + slot.scales), 1},
            .ids = reinterpret_cast<const int32_t*>(at + slot.ids),
            .ordinals = reinterpret_cast<const int32_t*>(at + slot.ordinals),
            .weights = reinterpret_cast<const float*>(at + slot.weights),
            .token_at = reinterpret_cast<const int32_t*>(at + slot.token)};
  }

  HEDDLE_HD static ArrivedRow in_batch(const DispatchArgs& args, int32_t token) {
    const int64_t first = int64_t{token} * args.call.shape.topk;
    const BatchView& batch = args.batch;
    return {.payload = batch.x + token * batch.x_stride,
            .scales = {batch.scales == nullptr ? nullptr : batch.scales + token * batch.scale_row_stride,
                       batch.scale_col_stride},
            .ids = args.plan.ids + first,
            .ordinals = args.plan.ordinals + first,
            .weights = batch.weights == nullptr ? nullptr : batch.weights + first,
            .token = token};
  }
};

/// A hit of a row: one column of its route as the receiver keeps it.
struct HitWord {
  int32_t local;    // id, -1 if the expert lives elsewhere
  float weight;     // 0 if it does
  int32_t row;      // grouped layouts: of the output; kDropped, or -1 if not local or not the first column
};

/// Experts of one rank.
struct LocalExperts {
  int32_t first = 0;
  int32_t count = 0;

  HEDDLE_HD static LocalExperts of(const Topology& topo) { return {topo.first_expert(topo.rank), topo.num_local(topo.rank)}; }
};

struct RowReader {
  const DispatchArgs& args;
  LocalExperts experts;  // of this rank
  int source;
  ArrivedRow row;
  const int32_t* expert_row = nullptr;  // the route's, or a nearer copy

  /// `i` is the row's number among all received ones. All that is beside the payload is loaded before it and stored behind.
  template <class Coop>
  HEDDLE_HD void place(const Coop& coop, int64_t i) const {
    if (i >= args.route.capacity) return;
    const Shape& shape = args.call.shape;
    const int64_t topk = shape.topk;
    const auto load_route = [&](int64_t k) { return route_word(static_cast<int>(k)); };
    const auto load_scale = [&](int64_t word) { return row.scales.words[word * row.scales.stride]; };
    const HeldWords<RouteWord, 1> route(coop, topk, load_route);
    const HeldWords<uint32_t, 2> scales(coop, shape.scale_words, load_scale);
    const int32_t token = row.token_at == nullptr ? row.token : *row.token_at;
    const bool grouped = shape.layout != Layout::token_major;
    const auto row_of_hit = [&](int k) { return grouped ? hit_of(load_route(k)).row : -1; };
    const auto hit_rows = told_by_lanes<int32_t, kMaxTopk>(coop, grouped ? shape.topk : 0, row_of_hit);
    const auto row_at = [&](int k) -> int64_t { return grouped ? hit_rows[k] : i < args.out.rows ? i : -1; };
    const int count = grouped ? shape.topk : 1;
    place_payload(coop, count, row_at);
    for (int k = 0; k < count && shape.scale_words > 0; ++k) {
      const int64_t at = row_at(k);
      if (at < 0) continue;
      uint32_t* to = args.out.scales.row(at);
      scales.store(coop, shape.scale_words, load_scale, [&](int64_t word, uint32_t scale) {
        to[word * args.out.scales.col_stride] = scale;
      });
    }
    if (coop.lane() == 0) args.route.recv_token[i] = token;
    if (!grouped && coop.lane() == 0 && i < args.out.rows) place_source(i, token);
    const bool repeats = grouped && may_repeat(coop);
    route.store(coop, topk, load_route, [&](int64_t k, const RouteWord& word) {
      const HitWord hit = hit_of(word);
      place_hit(i, static_cast<int>(k), hit, repeats, token);
    });
  }

  /// As place(), where put(row, k) stores payload and scales of hit k at a row of the output: each row by one lane, all lanes at
  /// once. Token-major, k is 0.
  template <class Coop, class Put>
  HEDDLE_HD void place_by_lanes(const Coop& coop, int64_t i, const Put& put) const {
    if (i >= args.route.capacity) return;
    const bool grouped = args.call.shape.layout != Layout::token_major;
    const int32_t token = row.token_at == nullptr ? row.token : *row.token_at;
    const bool repeats = grouped && may_repeat(coop);
    if (coop.lane() == 0) {
      args.route.recv_token[i] = token;
      if (!grouped && i < args.out.rows) {
        put(i, 0);
        place_source(i, token);
      }
    }
    for (int k = coop.lane(); k < args.call.shape.topk; k += coop.lanes()) {
      const HitWord hit = hit_of(route_word(k));
      if (hit.row >= 0) put(hit.row, k);
      place_hit(i, k, hit, repeats, token);
    }
  }

  /// found(local expert) for each row that the token has here, by one lane.
  template <class Coop, class Found>
  HEDDLE_HD void for_each_row(const Coop& coop, const Found& found) const {
    for (int k = coop.lane(); k < args.call.shape.topk; k += coop.lanes()) {
      const HitWord hit = hit_of(route_word(k));
      if (hit.row >= 0) found(hit.local);
    }
  }

  /// found(row) by the lane that has the row's first hit.
  template <class Coop, class Found>
  HEDDLE_HD void find_first_hit(const Coop& coop, const Found& found) const {
    for (int k = coop.lane(); k < args.call.shape.topk; k += coop.lanes()) {
      const HitWord hit = hit_of(route_word(k));
      if (hit.row >= 0 && is_first_hit(k)) found(hit.row);
    }
  }

  HEDDLE_HD bool is_first_hit(int k) const {
    for (int earlier = 0; earlier < k; ++earlier) {
      if (hit_of(route_word(earlier)).row >= 0) return false;
    }
    return true;
  }

 private:
  HEDDLE_HD float weight(int k) const { return row.weights == nullptr ? 0.0f : row.weights[k]; }
  HEDDLE_HD RouteWord route_word(int k) const { return {row.ids[k], row.ordinals[k], weight(k)}; }

  /// False: no expert was chosen twice.
  template <class Coop>
  HEDDLE_HD bool may_repeat(const Coop& coop) const {
    bool repeats = false;
    for (int k = coop.lane(); k < args.call.shape.topk; k += coop.lanes()) {
      repeats |= row.ids[k] >= 0 && row.ordinals[k] < 0;
    }
    return may_hold_in_any(coop, repeats);
  }

  HEDDLE_HD HitWord hit_of(const RouteWord& word) const {
    const int32_t local = word.id - experts.first;
    if (word.id < 0 || local < 0 || local >= experts.count) return {-1, 0.0f, -1};
    HitWord hit{local, word.weight, -1};
    if (args.call.shape.layout == Layout::token_major || word.ordinal < 0) return hit;
    const int32_t* first = expert_row == nullptr ? args.route.expert_row : expert_row;
    const int64_t at = int64_t{first[local * args.call.ctx.topo.world + source]} + word.ordinal;
    hit.row = at < args.out.rows ? static_cast<int32_t>(at) : kDropped;
    return hit;
  }

  /// What the handle and the output say of column k, by one lane.
  HEDDLE_HD void place_hit(int64_t i, int k, const HitWord& hit, bool repeats, int32_t token) const {
    const int64_t at = i * args.call.shape.topk + k;
    args.route.recv_ids[at] = hit.local;
    args.route.recv_weights[at] = hit.weight;
    if (args.call.shape.layout != Layout::token_major) {
      args.route.row_of[at] = hit.row;
      if (hit.row < 0) return;
      args.out.row_weights[hit.row] = repeats ? weight_of(k) : hit.weight;
      return place_source(hit.row, token);
    }
    if (i >= args.out.rows) return;
    args.out.place_id(at, hit.local);
    if (args.out.weights != nullptr) args.out.weights[at] = hit.weight;
  }

  /// An expert chosen twice has the sum of the weights (duplicates rule).
  HEDDLE_HD float weight_of(int k) const {
    float sum = weight(k);
    for (int later = k + 1; later < args.call.shape.topk; ++later) {
      if (row.ids[later] == row.ids[k]) sum += weight(later);
    }
    return sum;
  }

  /// To the rows row_at(0), ..., those below 0 left out. A row in place is where the first of them is.
  template <class Coop, class RowAt>
  HEDDLE_HD void place_payload(const Coop& coop, int count, const RowAt& row_at) const {
    const Shape& shape = args.call.shape;
    const auto bytes = static_cast<size_t>(shape.payload_bytes);
    const std::byte* from = row.payload;
    int first = 0;
    if (from == nullptr) {
      while (first < count && row_at(first) < 0) ++first;
      if (first < count) from = args.out.x + row_at(first) * shape.payload_bytes;
      ++first;
    }
    copy_to_many(coop, count, from, bytes, [&](int k) -> void* {
      const int64_t at = k < first ? -1 : row_at(k);
      return at < 0 ? nullptr : args.out.x + at * shape.payload_bytes;
    });
  }

  HEDDLE_HD void place_source(int64_t at, int32_t token) const {
    if (args.out.row_source != nullptr) args.out.row_source[at] = source;
    if (args.out.row_token != nullptr) args.out.row_token[at] = token;
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
    if (token_major && i < args.out.rows) args.out.place_id(i * topk + k, -1);
    if (token_major && i < args.out.rows && args.out.weights != nullptr) args.out.weights[i * topk + k] = 0.0f;
  }
  if (coop.lane() == 0) args.route.recv_token[i] = -1;
  if (token_major && i < args.out.rows) clear_row(coop, args, i);
}

}  // namespace heddle
