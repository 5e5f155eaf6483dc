#include "world/cases.hpp"

#include <algorithm>
#include <functional>

#include "device/quantise_args.hpp"
#include "support/dice.hpp"

namespace heddle::testing {
namespace {

constexpr Layout kLayouts[] = {Layout::token_major, Layout::expert_major, Layout::slab};

struct Payload {
  DType dtype;
  int scale_words;
  Quantise quantise;
};

constexpr Payload kPayloads[] = {
    {DType::bf16, 0, Quantise::none},     {DType::f16, 0, Quantise::none},      {DType::f32, 0, Quantise::none},
    {DType::e4m3, 3, Quantise::none},     {DType::u8, 2, Quantise::none},       {DType::bf16, 0, Quantise::fp8},
    {DType::bf16, 0, Quantise::fp8_pow2}, {DType::bf16, 0, Quantise::fp8_ue8m0}, {DType::bf16, 0, Quantise::fp8_row},
    {DType::bf16, 0, Quantise::mxfp8},    {DType::bf16, 0, Quantise::nvfp4}};

void set_payload(Case& c, const Payload& payload) {
  c.world.dtype = payload.dtype;
  c.world.scale_words = payload.scale_words;
  c.quantise = payload.quantise;
  c.global_scale = payload.quantise == Quantise::nvfp4 ? 100.0f : 1.0f;
}

/// Tiles of scales hold bytes, which the caller's may be.
bool may_have_tiles(const Case& c) { return has_byte_scales(c.quantise) || c.world.scale_words > 0; }

/// Drops what does not go with the layout, the map or the split.
Case legal(Case c) {
  if (c.layout == Layout::token_major) c.sum = Sum::plain;
  if (c.by_rank_map) {
    c.layout = Layout::token_major;
    c.sum = Sum::plain;
    c.with_weights = c.row_weights = false;
  }
  if (c.world.tokens == 0) {
    c.split_dispatch = c.split_combine = false;
    if (c.sum == Sum::alone) c.sum = Sum::late;
  }
  if (c.sum == Sum::at_owner) c.with_weights = true;
  if (c.sum == Sum::alone) c.split_combine = true;
  if (c.sum == Sum::late) c.split_combine = false;
  if (!c.fixed_size || c.layout == Layout::slab) c.capacity = -1;
  if (c.max_tokens > c.world.tokens) c.max_tokens = 0;
  if (!may_have_tiles(c)) c.scale_layout = ScaleLayout::usual;
  return c;
}

Case draw(Dice& dice, Layout layout) {
  Case c;
  c.world.seed = dice.word() % 1000000;
  c.world.routing = dice.one_of(kRoutings);
  c.world.ranks = dice.one_of({2, 2, 3, 4});
  c.world.tokens = dice.one_of({1, 5, 16, 37});
  c.world.topk = dice.one_of({1, 2, 4, 8});
  c.world.experts = dice.one_of({1, 5, 8, 16, 21});
  c.world.hidden = dice.one_of({16, 48, 144, 272});
  c.world.values = dice.one_in(4) ? Values::exact : Values::random;
  set_payload(c, dice.one_of(kPayloads));
  c.layout = layout;
  c.by_rank_map = dice.one_in(8);
  c.alignment = dice.one_of({1, 4, 7});
  c.fixed_size = dice.one_in(2);
  c.zero_padding = dice.one_in(3);
  c.split_dispatch = dice.one_in(4);
  c.with_weights = !dice.one_in(4);
  c.sum = dice.one_of({Sum::plain, Sum::at_owner, Sum::late, Sum::alone});
  c.split_combine = dice.one_in(4);
  c.in_dtype = dice.one_of({DType::bf16, DType::f16, DType::f32});
  c.out_dtype = dice.one_of({DType::bf16, DType::f16, DType::f32});
  c.wire = dice.one_of({ResultWire::usual, ResultWire::usual, ResultWire::float32, ResultWire::fp8, ResultWire::logfmt10});
  c.biases = dice.below(3);
  c.row_weights = dice.one_in(3);
  c.slots = dice.one_in(3) ? 3 : 0;
  c.repeats = dice.one_of({1, 1, 2, 3});
  c.wide_ids = dice.one_in(3);
  c.strided = dice.one_in(3);
  if (dice.one_in(3)) c.scale_layout = ScaleLayout::tiles;
  return c;
}

using Change = std::function<void(Case&)>;

/// Each change with each layout.
std::vector<Case> across_layouts(Dice& dice, const std::vector<Change>& changes) {
  std::vector<Case> cases;
  for (const Change& change : changes) {
    for (const Layout layout : kLayouts) {
      Case c = draw(dice, layout);
      c.by_rank_map = false;
      change(c);
      cases.push_back(legal(c));
    }
  }
  return cases;
}

std::vector<Change> routing_changes() {
  std::vector<Change> changes;
  for (const Routing routing : kRoutings) changes.push_back([=](Case& c) { c.world.routing = routing; });
  return changes;
}

std::vector<Change> rank_changes() {
  std::vector<Change> changes;
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    changes.push_back([=](Case& c) {
      c.world.ranks = ranks;
      c.repeats = std::min(c.repeats, 2);
    });
  }
  return changes;
}

std::vector<Change> payload_changes() {
  std::vector<Change> changes;
  for (const Payload& payload : kPayloads) changes.push_back([=](Case& c) { set_payload(c, payload); });
  return changes;
}

std::vector<Change> sum_changes() {
  std::vector<Change> changes;
  for (const Sum sum : {Sum::plain, Sum::at_owner, Sum::late, Sum::alone}) {
    for (const int biases : {0, 1, 2}) {
      changes.push_back([=](Case& c) {
        c.sum = sum;
        c.biases = biases;
        c.world.values = Values::random;
        c.row_weights = biases == 1;
        c.world.topk = 6;
        c.world.routing = biases == 0 ? Routing::duplicates : Routing::holes;
      });
    }
  }
  return changes;
}

/// Few slots, many rows: credits and rounds at work, also of pairs that differ in their number of rounds.
std::vector<Change> round_changes() {
  std::vector<Change> changes;
  for (const int slots : {1, 3}) {
    for (const Routing routing : {Routing::uniform, Routing::ragged, Routing::one_rank}) {
      changes.push_back([=](Case& c) {
        c.slots = slots;
        c.world.routing = routing;
        c.world.tokens = 9;
        c.split_dispatch = c.split_combine = false;
        if (c.sum == Sum::alone) c.sum = Sum::late;
        c.repeats = 3;
      });
    }
  }
  return changes;
}

std::vector<Change> size_changes() {
  return {
      [](Case& c) { c.world.tokens = 0; },
      [](Case& c) {
        c.world.topk = 64;
        c.world.experts = 96;
        c.world.tokens = 5;
        c.world.routing = Routing::uniform;
      },
      [](Case& c) {
        c.world.topk = 17;
        c.world.experts = 7;  // more columns than experts, experts that no rank count divides
        c.world.routing = Routing::duplicates;
      },
      [](Case& c) {
        c.fixed_size = true;
        c.capacity = 9;
        c.world.routing = Routing::one_rank;
      },
      [](Case& c) {
        c.fixed_size = true;
        c.capacity = 0;
      },
      [](Case& c) {
        c.world.routing = Routing::uniform;
        c.world.tokens = 16;
        c.fixed_size = true;
        c.split_dispatch = c.split_combine = true;
      },
  };
}

/// Also with too few slots for a row beside its payload, and in calls that may not use offers.
std::vector<Change> in_place_changes() {
  std::vector<Change> changes;
  for (const Heap heap : {Heap::ample, Heap::one_row, Heap::empty_once, Heap::nowhere}) {
    for (const Routing routing : {Routing::uniform, Routing::ragged, Routing::duplicates}) {
      changes.push_back([=](Case& c) {
        c.heap = heap;
        c.world.routing = routing;
        c.split_dispatch = routing == Routing::ragged && c.split_dispatch;
        c.repeats = 3;
      });
    }
  }
  return changes;
}

/// What the products above do not draw.
std::vector<Case> special_cases(Dice& dice) {
  Case map = draw(dice, Layout::token_major);
  map.by_rank_map = true;
  Case apart = draw(dice, Layout::expert_major);  // the table of late weights leaves no room for a row
  apart.by_rank_map = apart.row_weights = apart.split_dispatch = false;
  apart.wire = ResultWire::usual;
  apart.sum = Sum::late;
  apart.late_fits = false;
  apart.slots = 2;
  apart.world.tokens = 64;
  apart.world.topk = 4;
  apart.world.hidden = 16;
  apart.world.ranks = 3;
  set_payload(apart, kPayloads[0]);
  apart.in_dtype = apart.out_dtype = DType::bf16;
  apart.repeats = 2;
  return {legal(map), legal(apart)};
}

}  // namespace

const char* name_of(Group group) {
  constexpr const char* kNames[] = {"routings", "ranks", "payloads", "sums", "rounds", "sizes", "in_place"};
  return kNames[static_cast<int>(group)];
}

std::vector<Case> cases_of(Group group, uint64_t seed) {
  Dice dice(seed);
  switch (group) {
    case Group::routings: return across_layouts(dice, routing_changes());
    case Group::ranks: return across_layouts(dice, rank_changes());
    case Group::payloads: return across_layouts(dice, payload_changes());
    case Group::sums: return across_layouts(dice, sum_changes());
    case Group::rounds: return across_layouts(dice, round_changes());
    case Group::in_place: return across_layouts(dice, in_place_changes());
    case Group::sizes: {
      std::vector<Case> cases = across_layouts(dice, size_changes());
      for (const Case& c : special_cases(dice)) cases.push_back(c);
      return cases;
    }
  }
  return {};
}

Case any_case(uint64_t seed) {
  Dice dice(seed);
  const Layout layout = dice.one_of(kLayouts);
  return legal(draw(dice, layout));
}

}  // namespace heddle::testing
