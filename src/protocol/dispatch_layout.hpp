// Where the rows of a dispatch will lie at this rank: what follows from the tables that came with the headers.
#pragma once

#include <cstdint>

#include "device/block.hpp"
#include "layout/first_row.hpp"
#include "protocol/call_header.hpp"
#include "protocol/dispatch_args.hpp"

namespace heddle {

HEDDLE_HD inline bool is_grouped(const Shape& shape) { return shape.layout != Layout::token_major; }

HEDDLE_HD inline Groups groups_of(const Call& call) {
  return {.layout = call.shape.layout,
          .alignment = call.shape.alignment,
          .slab_rows = int64_t{call.ctx.topo.world} * call.shape.max_tokens};
}

/// A cell of a source's table; 0 if the source does not count.
HEDDLE_HD inline uint32_t table_count(const std::byte* window, const Call& call, int source, int column) {
  if (!call.state->counted[source]) return 0;
  return table_from(window, call, source)[column];
}

/// Of a grouped layout, until leave_out_dropped().
HEDDLE_HD inline bool drops_rows(const DispatchArgs& args) {
  const Topology& topo = args.call.ctx.topo;
  return args.out.expert_offsets[topo.num_local(topo.rank)] > args.out.rows;
}

/// Whether the tables' piece of the experts is held back, as rows are left out of them at the end. Where the memory of the rows is not
/// there yet, as in an exact call, or never comes, it is not.
HEDDLE_HD inline bool holds_tables(const DispatchArgs& args) { return args.out.x != nullptr && drops_rows(args); }

/// Of an expert in this call, where the plain steps place rows.
HEDDLE_HD inline uint64_t ready_pieces(const DispatchArgs& args, int expert) {
  return static_cast<uint64_t>(args.out.counts[expert]) + 1;
}

template <class Coop>
class DispatchLayout {
 public:
  HEDDLE_HD DispatchLayout(const Coop& coop, const std::byte* window, const DispatchArgs& args)
      : coop_(coop), window_(window), a_(args), call_(args.call), topo_(args.call.ctx.topo),
        local_(topo_.num_local(topo_.rank)), first_(topo_.first_expert(topo_.rank)) {}

  HEDDLE_HD void run() const {
    if (is_leader(coop_)) offset_sources();
    deal_lanes(coop_, 0, local_, [&](long expert) {
      const auto count = static_cast<int32_t>(expert_count(static_cast<int>(expert)));
      a_.out.counts[expert] = count;
      if (a_.out.host_counts != nullptr) a_.out.host_counts[expert] = count;
      if (a_.out.total_counts != nullptr) a_.out.total_counts[expert] += count;
    });
    coop_.sync();
    if (!is_grouped(call_.shape)) return;
    // Each start by itself, from the counts before it: a chain by one lane took longer than all else of a dispatch's
    // headers.
    deal_lanes(coop_, 0, local_ + 1, [&](long expert) { a_.out.expert_offsets[expert] = start_of(expert); });
    coop_.sync();
    deal_lanes(coop_, 0, int64_t{local_} * topo_.world, [&](long item) { place_source(item); });
    coop_.sync();
    if (a_.out.ready.is_set()) announce_tables();
  }

 private:
  HEDDLE_HD int64_t count(int source, int column) const { return table_count(window_, call_, source, column); }

  HEDDLE_HD void offset_sources() const {
    const CallState& state = *call_.state;
    const RouteView& route = a_.route;
    int32_t end = route.recv_offset[0] = 0;
    for (int source = 0; source < topo_.world; ++source) {
      const bool counted = state.counted[source] != 0;
      route.recv_offset[source + 1] = end += counted ? state.count[source] : 0;
      route.source_tokens[source] = counted ? state.tokens[source] : 0;
    }
  }

  /// Token-major: pairs, from the second part of the table. Else rows.
  HEDDLE_HD int64_t expert_count(int expert) const {
    const int before = is_grouped(call_.shape) ? 0 : topo_.world;
    const auto of = [&](int source, int column) { return count(source, column); };
    return group_rows(of, topo_.world, before + first_ + expert);
  }

  HEDDLE_HD int64_t start_of(long expert) const {
    const Groups groups = groups_of(call_);
    constexpr int kAhead = 16;  // loads that are waited for together
    int64_t start = 0;
    for (long first = 0; first < expert; first += kAhead) {
      int32_t rows[kAhead];
      for (int i = 0; i < kAhead; ++i) rows[i] = first + i < expert ? a_.out.counts[first + i] : 0;
      for (int i = 0; i < kAhead; ++i) {
        if (first + i < expert) start = groups.next(start, rows[i]);
      }
    }
    return start;
  }

  /// Counts are final unless rows are dropped: then they are at the call's end only, and so experts are ready no sooner.
  HEDDLE_HD void announce_tables() const {
    if (holds_tables(a_)) return;
    deal_lanes(coop_, 0, local_, [&](long expert) {
      add_ready(a_.out.ready.words + expert, ready_pieces(a_, static_cast<int>(expert)));
    });
    coop_.sync();
  }

  HEDDLE_HD void place_source(long item) const {
    const int expert = static_cast<int>(item / topo_.world);
    const int source = static_cast<int>(item % topo_.world);
    const auto of = [&](int other, int column) { return count(other, column); };
    const int64_t before = first_row(of, first_ + expert, source);
    a_.route.expert_row[item] = static_cast<int32_t>(a_.out.expert_offsets[expert] + before);
    if (a_.out.layout_range == nullptr) return;
    a_.out.layout_range[item] = before << 32 | count(source, first_ + expert);
  }

  const Coop& coop_;
  const std::byte* window_;
  const DispatchArgs& a_;
  const Call& call_;
  Topology topo_;
  int local_;
  int first_;
};

/// Rows past the output's end.
HEDDLE_HD inline int64_t num_dropped(const DispatchArgs& args) {
  const Topology& topo = args.call.ctx.topo;
  const int64_t rows = args.out.rows;
  if (!is_grouped(args.call.shape)) {
    const int64_t received = args.route.recv_offset[topo.world];
    return received > rows ? received - rows : 0;
  }
  const int local = topo.num_local(topo.rank);
  if (args.out.expert_offsets[local] <= rows) return 0;
  int64_t dropped = 0;
  for (int expert = 0; expert < local; ++expert) {
    const int64_t start = args.out.expert_offsets[expert];
    const int64_t end = start + args.out.counts[expert];
    const int64_t kept_until = start > rows ? start : end < rows ? end : rows;
    dropped += end - kept_until;
  }
  return dropped;
}

/// Token-major: takes the pairs of rows past the output's end off the counts. All members.
template <class Coop>
HEDDLE_HD void uncount_dropped_pairs(const Coop& coop, const DispatchArgs& args) {
  constexpr int kAhead = 8;  // loads that are waited for together; a count that changes between them would part them
  const int64_t topk = args.call.shape.topk;
  const int64_t known = args.route.recv_offset[args.call.ctx.topo.world];
  const int64_t end = (known < args.route.capacity ? known : args.route.capacity) * topk;
  const int64_t width = int64_t{coop.size()} * coop.lanes();
  int64_t first = args.out.rows * topk + int64_t{coop.index()} * coop.lanes() + coop.lane();
  for (; first < end; first += kAhead * width) {
    int32_t ids[kAhead];
    for (int i = 0; i < kAhead; ++i) ids[i] = first + i * width < end ? args.route.recv_ids[first + i * width] : -1;
    for (const int32_t id : ids) {
      if (id >= 0) add_shared(&args.out.counts[id], -1);
    }
  }
}

/// Counts and groups speak of the rows that are there: whoever reads the output by them stays inside it. All members; nobody
/// may still read what the layout says.
template <class Coop>
HEDDLE_HD void leave_out_dropped(const Coop& coop, const DispatchArgs& args) {
  if (!is_grouped(args.call.shape)) return uncount_dropped_pairs(coop, args);
  const Topology& topo = args.call.ctx.topo;
  const int local = topo.num_local(topo.rank);
  deal_lanes(coop, 0, local + 1, [&](long expert) {
    int64_t& start = args.out.expert_offsets[expert];
    const int64_t left = args.out.rows > start ? args.out.rows - start : 0;
    if (expert < local && args.out.counts[expert] > left) args.out.counts[expert] = static_cast<int32_t>(left);
    if (start > args.out.rows) start = args.out.rows;
  });
}

}  // namespace heddle
