// The route of one batch, from its ids or its rank map: who gets which token, in token order (I1). Local; no peer is met.
#pragma once

#include <cstdint>

#include "device/coop.hpp"
#include "layout/topology.hpp"

namespace heddle {

/// Flat tensors of a plan; device memory. T tokens, K columns, R ranks, E experts.
struct PlanView {
  int32_t tokens = 0;
  int32_t topk = 0;
  int32_t* ids = nullptr;          // [T][K], -1 = none
  int32_t* ordinals = nullptr;     // [T][K] at the first column of a (token, expert): the how-many-th token of this rank
                                   // that hits the expert; else -1
  uint8_t* in_rank = nullptr;      // [T][R]
  int32_t* per_rank = nullptr;     // [R] tokens for each rank
  int32_t* send_offset = nullptr;  // [R + 1]
  int32_t* send_tokens = nullptr;  // [T * min(K, R) at most]: for each destination its tokens; the k-th is slot k
  int32_t* pairs = nullptr;        // [E] (token, column) pairs
  int32_t* rows = nullptr;         // [E] distinct (token, expert)
  int32_t* scratch = nullptr;      // plan_scratch_words() words

  HEDDLE_HD int32_t sends(int rank) const { return send_offset[rank + 1] - send_offset[rank]; }
};

HEDDLE_HD constexpr int64_t plan_scratch_words(const Topology& topo, int64_t lanes) {
  return lanes * (topo.world + int64_t{2} * topo.experts);
}

/// The first column that holds columns[k]'s expert.
HEDDLE_HD inline bool is_first_of_expert(const int32_t* columns, int k) {
  for (int earlier = 0; earlier < k; ++earlier) {
    if (columns[earlier] == columns[k]) return false;
  }
  return true;
}

/// Counts, then assigns: each lane walks a run of tokens twice, with the totals of the lanes before it in between.
template <class Coop>
class Planner {
 public:
  HEDDLE_HD Planner(const Coop& coop, const Topology& topo, const PlanView& plan)
      : coop_(coop), topo_(topo), plan_(plan), lane_(coop.index() * coop.lanes() + coop.lane()),
        lanes_(coop.size() * coop.lanes()), columns_(topo.world + 2 * topo.experts) {}

  HEDDLE_HD void run() const {
    count();
    coop_.sync();
    deal_lanes(coop_, 0, columns_, [&](long column) { sum_column(static_cast<int>(column)); });
    coop_.sync();
    if (is_leader(coop_)) offset_ranks();
    coop_.sync();
    assign();
    coop_.sync();
  }

 private:
  HEDDLE_HD int32_t* counts(int lane) const { return plan_.scratch + static_cast<int64_t>(lane) * columns_; }
  HEDDLE_HD int32_t* rows(int lane) const { return counts(lane) + topo_.world; }
  HEDDLE_HD int32_t* pairs(int lane) const { return rows(lane) + topo_.experts; }
  HEDDLE_HD int first_token(int lane) const {
    return static_cast<int>(static_cast<int64_t>(plan_.tokens) * lane / lanes_);
  }
  HEDDLE_HD const int32_t* columns_of(int token) const { return plan_.ids + static_cast<int64_t>(token) * plan_.topk; }
  HEDDLE_HD uint8_t* ranks_of(int token) const { return plan_.in_rank + static_cast<int64_t>(token) * topo_.world; }

  HEDDLE_HD void count() const {
    for (int column = 0; column < columns_; ++column) counts(lane_)[column] = 0;
    for (int token = first_token(lane_); token < first_token(lane_ + 1); ++token) {
      if (plan_.topk > 0) mark_ranks(token);
      for (int rank = 0; rank < topo_.world; ++rank) counts(lane_)[rank] += ranks_of(token)[rank] != 0;
    }
  }

  HEDDLE_HD void mark_ranks(int token) const {
    const int32_t* ids = columns_of(token);
    for (int rank = 0; rank < topo_.world; ++rank) ranks_of(token)[rank] = 0;
    for (int k = 0; k < plan_.topk; ++k) {
      if (ids[k] < 0) continue;
      ranks_of(token)[topo_.owner_of(ids[k])] = 1;
      ++pairs(lane_)[ids[k]];
      if (is_first_of_expert(ids, k)) ++rows(lane_)[ids[k]];
    }
  }

  /// Turns the lanes' counts of a column into what the lanes before had, and writes the total.
  HEDDLE_HD void sum_column(int column) const {
    int32_t total = 0;
    for (int lane = 0; lane < lanes_; ++lane) {
      const int32_t own = counts(lane)[column];
      counts(lane)[column] = total;
      total += own;
    }
    const int expert = column - topo_.world;
    if (expert < 0) plan_.send_offset[column + 1] = total;
    else if (expert < topo_.experts) plan_.rows[expert] = total;
    else plan_.pairs[expert - topo_.experts] = total;
  }

  HEDDLE_HD void offset_ranks() const {
    plan_.send_offset[0] = 0;
    for (int rank = 0; rank < topo_.world; ++rank) {
      plan_.per_rank[rank] = plan_.send_offset[rank + 1];
      plan_.send_offset[rank + 1] += plan_.send_offset[rank];
    }
  }

  HEDDLE_HD void assign() const {
    for (int token = first_token(lane_); token < first_token(lane_ + 1); ++token) {
      for (int rank = 0; rank < topo_.world; ++rank) {
        if (ranks_of(token)[rank] != 0) plan_.send_tokens[plan_.send_offset[rank] + counts(lane_)[rank]++] = token;
      }
      const int32_t* ids = columns_of(token);
      int32_t* ordinals = plan_.ordinals + static_cast<int64_t>(token) * plan_.topk;
      for (int k = 0; k < plan_.topk; ++k) {
        ordinals[k] = ids[k] >= 0 && is_first_of_expert(ids, k) ? rows(lane_)[ids[k]]++ : -1;
      }
    }
  }

  Coop coop_;
  Topology topo_;
  PlanView plan_;
  int lane_;
  int lanes_;
  int columns_;
};

template <class Coop>
HEDDLE_HD void make_plan(const Coop& coop, const Topology& topo, const PlanView& plan) {
  Planner<Coop>(coop, topo, plan).run();
}

}  // namespace heddle
