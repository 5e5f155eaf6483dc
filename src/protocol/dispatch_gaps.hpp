// What a dispatch leaves where no row lies, or none any more: padding, the room behind the last row, and the rows of a
// source that was masked meanwhile.
#pragma once

#include <cstdint>

#include "protocol/dispatch_layout.hpp"
#include "protocol/dispatch_rows.hpp"

namespace heddle {

/// Rows of the output that no row comes to.
struct Gap {
  int64_t first;
  int64_t end;

  /// Behind the rows of an expert; of the last one to the output's end.
  HEDDLE_HD static Gap behind(const DispatchArgs& args, int expert) {
    const OutputView& out = args.out;
    const int last = args.call.ctx.topo.num_local(args.call.ctx.topo.rank) - 1;
    const int64_t first = out.expert_offsets[expert] + out.counts[expert];
    const int64_t next = expert == last ? out.rows : out.expert_offsets[expert + 1];
    return {first, next < out.rows ? next : out.rows};
  }
};

/// One lane.
HEDDLE_HD inline void clear_places(const DispatchArgs& args, int64_t row) {
  const OutputView& out = args.out;
  const int64_t topk = args.call.shape.topk;
  for (int64_t k = 0; k < topk && out.has_ids(); ++k) out.place_id(row * topk + k, -1);
  for (int64_t k = 0; k < topk && out.weights != nullptr; ++k) out.weights[row * topk + k] = 0.0f;
  if (out.row_weights != nullptr) out.row_weights[row] = 0.0f;
  if (out.row_source != nullptr) out.row_source[row] = -1;
  if (out.row_token != nullptr) out.row_token[row] = -1;
}

/// What is dealt of a gap: rows part, part + parts, ... by one worker.
template <class Coop>
HEDDLE_HD void clear_gap(const Coop& coop, const DispatchArgs& args, const Gap& gap, int64_t part, int64_t parts) {
  const OutputView& out = args.out;
  for (int64_t row = gap.first + part * coop.lanes() + coop.lane(); row < gap.end; row += parts * coop.lanes()) {
    clear_places(args, row);
  }
  if (!out.zero_padding) return;
  const auto bytes = static_cast<size_t>(args.call.shape.payload_bytes);
  for (int64_t row = gap.first + part; row < gap.end; row += parts) {
    zero_bytes(coop, out.x + row * args.call.shape.payload_bytes, bytes);
    for (int i = coop.lane(); i < args.call.shape.scale_words; i += coop.lanes()) {
      out.scales.row(row)[i * out.scales.col_stride] = 0;
    }
  }
}

/// What must not be old memory where no row will lie. Before any member places rows or after: they never meet.
template <class Coop>
HEDDLE_HD void clear_gaps(const Coop& coop, const DispatchArgs& args) {
  const Topology& topo = args.call.ctx.topo;
  const int groups = is_grouped(args.call.shape) ? topo.num_local(topo.rank) : 0;
  if (groups == 0) {
    const Gap rest{is_grouped(args.call.shape) ? 0 : args.route.recv_offset[topo.world], args.out.rows};
    clear_gap(coop, args, rest, coop.index(), coop.size());
  }
  // Several workers for each group, as some gaps are long; the last one, which may be most of the output, all share.
  const int64_t parts = groups == 0 ? 1 : ceil_div(coop.size(), groups);
  deal(coop, 0, (groups - 1) * parts, [&](long item) {
    clear_gap(coop, args, Gap::behind(args, static_cast<int>(item / parts)), item % parts, parts);
  });
  if (groups > 0) clear_gap(coop, args, Gap::behind(args, groups - 1), coop.index(), coop.size());
  if (is_leader(coop) && args.out.num_dropped != nullptr) *args.out.num_dropped = num_dropped(args);
}

/// A source that was masked after its header came: its rows are not there, whatever was placed of them.
template <class Coop>
class MaskedRows {
 public:
  HEDDLE_HD MaskedRows(const Coop& coop, const std::byte* window, const DispatchArgs& args)
      : coop_(coop), window_(window), a_(args), topo_(args.call.ctx.topo), local_(topo_.num_local(topo_.rank)),
        first_(topo_.first_expert(topo_.rank)) {}

  HEDDLE_HD void drop() const {
    const CallState& state = *a_.call.state;
    for (int source = 0; source < topo_.world; ++source) {
      if (is_leader(coop_)) a_.route.status[source] = state.status[source];
      if (is_live(state, source) || !state.counted[source]) continue;
      const int64_t first = a_.route.recv_offset[source];
      deal(coop_, 0, state.count[source], [&](long i) { drop_row(coop_, a_, first + i); });
      if (is_grouped(a_.call.shape)) clear_group_rows(source);
      else if (is_leader(coop_)) uncount_pairs(source);
    }
  }

 private:
  /// Its places in the groups stay, empty.
  HEDDLE_HD void clear_group_rows(int source) const {
    for (int expert = 0; expert < local_; ++expert) {
      const int64_t start = a_.route.expert_row[expert * topo_.world + source];
      const int64_t end = start + table_count(window_, a_.call, source, first_ + expert);
      deal(coop_, start, end < a_.out.rows ? end : a_.out.rows, [&](long row) { clear_row(coop_, a_, row); });
    }
  }

  HEDDLE_HD void uncount_pairs(int source) const {
    for (int expert = 0; expert < local_; ++expert) {
      a_.out.counts[expert] -=
          static_cast<int32_t>(table_count(window_, a_.call, source, topo_.world + first_ + expert));
    }
  }

  const Coop& coop_;
  const std::byte* window_;
  const DispatchArgs& a_;
  Topology topo_;
  int local_;
  int first_;
};

template <class Coop>
HEDDLE_HD void drop_masked_rows(const Coop& coop, const std::byte* window, const DispatchArgs& args) {
  MaskedRows<Coop>(coop, window, args).drop();
}

}  // namespace heddle
