#include "sim/program.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "protocol/combine.hpp"
#include "support/dice.hpp"

namespace heddle::testing {
namespace {

int64_t range_for(const Shape& shape, int ranks, int64_t slots) {
  const int64_t stride = Slot::of(shape).stride;
  return Range::of(0, table_bytes(shape, ranks), stride).slots + slots * stride;
}

class Drawer {
 public:
  explicit Drawer(uint64_t seed) : dice_(seed * 2654435761u + 17) { p_.seed = seed; }

  Program draw() {
    p_.ranks = dice_.one_of({2, 2, 3, 3, 4, 5});
    p_.topk = dice_.one_of({1, 2, 3});
    p_.experts = dice_.one_of({p_.ranks, p_.ranks + 1, 2 * p_.ranks});
    has_rounds_ = dice_.one_in(2);
    p_.max_tokens = has_rounds_ ? 10 : 3;
    p_.mask_late = dice_.one_in(3);
    p_.in_place = dice_.one_in(3);
    p_.direct = dice_.one_in(3);
    p_.halves = dice_.one_in(2);
    for (int i = 0; i < 3; ++i) p_.batches.push_back(draw_batch());
    const int segments = 2 + dice_.below(3);
    for (int i = 0; i < segments; ++i) add_segment(i + 1 == segments);
    return p_;
  }

 private:
  std::vector<RankBatch> draw_batch() {
    std::vector<RankBatch> batch(static_cast<size_t>(p_.ranks));
    for (RankBatch& of : batch) {
      of.tokens = dice_.one_in(5) ? 0 : dice_.below(p_.max_tokens + 1);
      const bool to_one = dice_.one_in(4);  // all rows to one rank: as many rounds as there can be
      const int one = dice_.below(p_.experts);
      for (int i = 0; i < of.tokens * p_.topk; ++i) {
        of.ids.push_back(dice_.one_in(6) ? -1 : to_one ? one : dice_.below(p_.experts));
        of.weights.push_back(static_cast<float>(1 + dice_.below(2)));
      }
    }
    return batch;
  }

  Step draw_dispatch() {
    Step step{.what = Do::dispatch};
    step.layout = dice_.one_of({Layout::token_major, Layout::expert_major, Layout::slab});
    step.split = !has_rounds_ && dice_.one_in(2);
    step.fixed = dice_.one_in(3);
    step.batch = dice_.below(static_cast<int>(p_.batches.size()));
    return step;
  }

  Step draw_combine(const Segment& segment, int of) {
    const Step& dispatch = segment.steps[static_cast<size_t>(of)];
    Step step{.what = Do::combine, .layout = dispatch.layout, .batch = dispatch.batch, .of = of};
    step.split = !has_rounds_ && dice_.one_in(2);
    if (dispatch.layout == Layout::token_major) return step;
    step.sum = dice_.one_of({Sum::plain, Sum::at_owner, step.split ? Sum::alone : Sum::late});
    return step;
  }

  void add_calls(Segment& segment, int calls) {
    for (int i = 0; i < calls; ++i) {
      std::vector<int> handles;
      for (size_t at = 0; at < segment.steps.size(); ++at) {
        if (segment.steps[at].what == Do::dispatch) handles.push_back(static_cast<int>(at));
      }
      const bool combines = !handles.empty() && !dice_.one_in(3);
      segment.steps.push_back(combines ? draw_combine(segment, dice_.one_of(handles)) : draw_dispatch());
    }
  }

  void add_segment(bool last) {
    Segment segment;
    const int trouble = dice_.below(6);
    // A rank that is ahead must not carry the trouble into the segment that another is still in.
    if (trouble > 1 && trouble < 5 && !p_.segments.empty()) p_.segments.back().resets = true;
    add_calls(segment, 1 + dice_.below(4));
    if (trouble == 1) add_refusal(segment);
    if (trouble == 5) segment.steps.push_back({.what = Do::starve, .batch = dice_.below(3), .rank = a_living_rank()});
    if (trouble == 2) add_trouble(segment, Do::mask);
    if (trouble == 3) add_trouble(segment, Do::stall);
    if (trouble == 4 && living() > 2 && (last || dice_.one_in(2))) add_trouble(segment, Do::die);
    add_calls(segment, 1 + dice_.below(3));
    segment.resets = segment.resets || dice_.one_in(4);
    p_.segments.push_back(segment);
  }

  int living() const { return p_.ranks - static_cast<int>(dead_.size()); }

  int a_living_rank() {
    while (true) {
      const int rank = dice_.below(p_.ranks);
      if (std::find(dead_.begin(), dead_.end(), rank) == dead_.end()) return rank;
    }
  }

  void add_refusal(Segment& segment) {
    Step step = dice_.one_in(2) ? draw_dispatch() : draw_combine(segment, first_dispatch(segment));
    step.what = Do::refuse;
    step.rank = a_living_rank();
    segment.steps.push_back(step);
  }

  static int first_dispatch(const Segment& segment) {
    for (size_t at = 0; at < segment.steps.size(); ++at) {
      if (segment.steps[at].what == Do::dispatch) return static_cast<int>(at);
    }
    return 0;
  }

  void add_trouble(Segment& segment, Do what) {
    Step step{.what = what, .rank = a_living_rank()};
    do step.peer = a_living_rank();
    while (living() > 1 && step.peer == step.rank);
    step.puts = dice_.below(12);
    if (step.peer == step.rank) return;
    segment.steps.push_back(step);
    segment.resets = true;
    segment.may_mask = what == Do::mask || p_.mask_late;
    segment.may_fault = what != Do::mask && !p_.mask_late;
    if (what != Do::die) return;
    segment.dead = step.rank;
    dead_.push_back(step.rank);
  }

  Dice dice_;
  Program p_;
  bool has_rounds_ = false;
  std::vector<int> dead_;
};

const char* name_of(Do what) {
  constexpr const char* kNames[] = {"dispatch", "combine", "refuse", "starve", "mask", "stall", "die"};
  return kNames[static_cast<int>(what)];
}

}  // namespace

int64_t Program::window_bytes() const {
  Shape out{.payload_bytes = kHidden * 4, .topk = topk, .experts = experts, .max_tokens = max_tokens};
  Shape back{.kind = Kind::combine, .payload_bytes = kHidden * 4, .topk = topk, .max_tokens = max_tokens};
  int64_t range = std::max(range_for(out, ranks, slots), range_for(back, ranks, slots));
  back.weights = Weights::late;
  range = std::max(range, range_for(back, ranks, slots));
  back.weights = Weights::at_source;
  if (max_tokens <= slots) range = std::max(range, range_for(back, ranks, slots * places_of(back)));
  return window_bytes_for(ranks, range);
}

std::string Program::describe() const {
  std::string what = fmt::format("HEDDLE_SIM_SEED={}: {} ranks, {} experts, topk {}, {} tokens, {} slots{}{}{}{}", seed, ranks,
                                 experts, topk, max_tokens, slots, mask_late ? ", masks late peers" : "",
                                 in_place ? ", in place" : "", direct ? ", direct" : "", halves ? ", halves" : "");
  for (const Segment& segment : segments) {
    what += "\n  ";
    for (const Step& step : segment.steps) {
      what += fmt::format("{}{}(layout {}, batch {}, of {}, sum {}, rank {}, peer {}, puts {}) ", name_of(step.what),
                          step.split ? "_split" : "", static_cast<int>(step.layout), step.batch, step.of,
                          static_cast<int>(step.sum), step.rank, step.peer, step.puts);
    }
    if (segment.resets) what += "reset";
  }
  return what;
}

Program draw_program(uint64_t seed) { return Drawer(seed).draw(); }

Program tiny_program(std::vector<Step> steps) {
  Program p;
  p.ranks = p.experts = p.topk = 2;
  p.max_tokens = p.slots = 1;
  const std::vector<RankBatch> batch{{.tokens = 1, .ids = {0, 1}, .weights = {1, 2}},
                                     {.tokens = 1, .ids = {-1, 0}, .weights = {1, 1}}};
  p.batches = {batch, batch};  // their rows differ
  p.segments = {{.steps = std::move(steps)}};
  return p;
}

}  // namespace heddle::testing
