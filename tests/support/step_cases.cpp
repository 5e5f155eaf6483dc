#include "support/step_cases.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.hpp"

namespace heddle::testing {
namespace {

void expect(bool ok, const char* step) {
  if (!ok) fail(ErrorCode::faulted, "{} ended in a fault", step);
}

std::string first_difference(const TableBytes& wanted, const TableBytes& seen) {
  if (wanted.size() != seen.size()) return fmt::format("{} bytes, wanted {}", seen.size(), wanted.size());
  size_t wrong = 0, first = wanted.size();
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == seen[i]) continue;
    first = std::min(first, i);
    ++wrong;
  }
  if (wrong == 0) return "";
  return fmt::format("{} of {} bytes differ, the first at {}: {:#x}, wanted {:#x}", wrong, wanted.size(), first,
                     seen[first], wanted[first]);
}

WorldOptions world_of(int ranks, Routing routing, int topk = 4) {
  return {.routing = routing, .ranks = ranks, .tokens = 61, .topk = topk, .experts = 10, .hidden = 512,
          .values = Values::random};
}

std::vector<StepCase> make_cases() {
  const std::vector<CombineCase> grouped{{},
                                         {.weights = Weights::at_owner},
                                         {.weights = Weights::late, .biases = 1},
                                         {.weights = Weights::at_source, .biases = 2},
                                         {.wire = ResultWire::float32},
                                         {.weights = Weights::at_owner, .wire = ResultWire::logfmt10, .biases = 1},
                                         {.weights = Weights::late, .wire = ResultWire::fp8},
                                         {.weights = Weights::at_source, .wire = ResultWire::fp8},
                                         {.row_weights = true}};
  const std::vector<CombineCase> tokens{{},
                                        {.biases = 2},
                                        {.wire = ResultWire::float32},
                                        {.wire = ResultWire::fp8, .biases = 2},
                                        {.row_weights = true}};
  const DispatchCase token_major{.max_tokens = 61};
  const DispatchCase expert_major{.layout = Layout::expert_major, .alignment = 8, .max_tokens = 61, .zero_padding = true};
  const DispatchCase slab{.layout = Layout::slab, .max_tokens = 61};
  auto fp8 = [](DispatchCase base, Quantise quantise) {
    base.quantise = quantise;
    return base;
  };
  auto fixed = [](DispatchCase base, int64_t capacity) {
    base.fixed_size = true;
    base.capacity = capacity;
    return base;
  };
  std::vector<StepCase> all{
      {"token_major_1_rank", world_of(1, Routing::uniform), token_major, tokens},
      {"token_major_2_ranks", world_of(2, Routing::uniform), token_major, tokens},
      {"token_major_holes", world_of(2, Routing::holes), token_major, tokens},
      {"token_major_three_slots", world_of(2, Routing::uniform), token_major, {{}}, 3},
      {"token_major_nothing", world_of(2, Routing::nothing), token_major, {{}}},
      {"token_major_empty_rank", world_of(3, Routing::empty_rank), token_major, {{}}},
      {"token_major_fixed", world_of(2, Routing::ragged), fixed(token_major, -1), tokens},
      {"token_major_dropped", world_of(2, Routing::uniform), fixed(token_major, 40), {{}, {.wire = ResultWire::fp8}}},
      {"token_major_fp8", world_of(2, Routing::uniform), fp8(token_major, Quantise::fp8), {{}}},
      {"expert_major_2_ranks", world_of(2, Routing::uniform), expert_major, grouped},
      {"expert_major_duplicates", world_of(2, Routing::duplicates), expert_major, grouped},
      {"expert_major_ragged_3_ranks", world_of(3, Routing::ragged), expert_major, grouped},
      {"expert_major_skew", world_of(4, Routing::one_expert), expert_major, {{}}},
      {"expert_major_five_slots", world_of(2, Routing::zipf), expert_major, grouped, 5},
      {"expert_major_ue8m0", world_of(2, Routing::uniform), fp8(expert_major, Quantise::fp8_ue8m0), {{}}},
      {"expert_major_dropped", world_of(2, Routing::uniform), fixed(expert_major, 100), {{}}},
      {"slab_2_ranks", world_of(2, Routing::uniform), slab, grouped},
      {"slab_pow2", world_of(2, Routing::holes), fp8(slab, Quantise::fp8_pow2), {{}}},
      {"expert_major_8_ranks", world_of(8, Routing::uniform), expert_major, grouped},
  };
  const WorldOptions wide{.tokens = 37, .topk = 4, .experts = 10, .hidden = 1064, .values = Values::random};
  DispatchCase nvfp4 = fp8(slab, Quantise::nvfp4);
  nvfp4.global_scale = 100.0f;
  nvfp4.scale_layout = ScaleLayout::tiles;
  all.push_back({"slab_fp8_row", wide, fp8(slab, Quantise::fp8_row), {{}}});
  all.push_back({"slab_mxfp8", wide, fp8(slab, Quantise::mxfp8), {{}}});
  all.push_back({"slab_nvfp4_tiles", wide, nvfp4, {{}}});
  all.push_back({"expert_major_mxfp8", world_of(2, Routing::holes), fp8(expert_major, Quantise::mxfp8), {{}}});
  all.push_back({"expert_major_nvfp4", world_of(2, Routing::uniform), fp8(expert_major, Quantise::nvfp4), {{}}});
  all.push_back(
      {"token_major_nvfp4_three_slots", world_of(2, Routing::uniform), fp8(token_major, Quantise::nvfp4), {{}}, 3});
  all.push_back({"token_major_fp8_row", world_of(2, Routing::uniform), fp8(token_major, Quantise::fp8_row), {{}}});
  all.push_back({"scales_of_the_caller", world_of(2, Routing::uniform), token_major, {{}}});
  all.back().world.dtype = all.back().dispatch.dtype = DType::e4m3;
  all.back().world.scale_words = 4;
  all.push_back({"wide_topk", world_of(2, Routing::duplicates, 33), expert_major, grouped});
  all.push_back({"odd_hidden", world_of(2, Routing::uniform), expert_major, grouped});
  all.back().world.hidden = 1032;
  return all;
}

StepCase decode_case(const char* name, const WorldOptions& world, const DispatchCase& dispatch,
                     const std::vector<CombineCase>& combines) {
  StepCase one{name, world, dispatch, combines};
  one.words = true;
  one.dispatch.max_tokens = world.tokens;
  return one;
}

std::vector<StepCase> make_decode_cases() {
  const std::vector<CombineCase> weighted{
      {}, {.weights = Weights::at_owner}, {.weights = Weights::late, .biases = 1}, {.biases = 2}};
  const DispatchCase slab{.layout = Layout::slab, .quantise = Quantise::fp8};
  const DispatchCase pow2{.layout = Layout::slab, .quantise = Quantise::fp8_pow2};
  const DispatchCase bytes{.layout = Layout::slab, .quantise = Quantise::fp8_ue8m0};
  const DispatchCase rowwise{.layout = Layout::slab, .quantise = Quantise::fp8_row};
  const DispatchCase blocks{.layout = Layout::slab, .quantise = Quantise::mxfp8};
  const DispatchCase groups{.layout = Layout::expert_major, .quantise = Quantise::fp8, .alignment = 8, .fixed_size = true,
                            .zero_padding = true, .split = true};
  const DispatchCase raw{.layout = Layout::slab};
  DispatchCase raw_groups = groups;
  raw_groups.quantise = Quantise::none;
  auto sized = [](WorldOptions world, int tokens, int hidden) {
    world.tokens = tokens;
    world.hidden = hidden;
    return world;
  };
  auto with_ones = [](WorldOptions world) {
    world.ones = 3;
    return world;
  };
  std::vector<StepCase> all{
      decode_case("slab_1_rank", world_of(1, Routing::uniform), slab, weighted),
      decode_case("slab_2_ranks", world_of(2, Routing::uniform), slab, weighted),
      decode_case("slab_odd_hidden", sized(world_of(2, Routing::uniform), 61, 1296), slab, weighted),
      decode_case("slab_one_token", sized(world_of(2, Routing::uniform), 1, 7168), slab, weighted),
      decode_case("slab_many_tokens", sized(world_of(2, Routing::uniform), 700, 528), slab, weighted),
      decode_case("slab_holes", world_of(2, Routing::holes), pow2, weighted),
      decode_case("slab_duplicates", world_of(2, Routing::duplicates), bytes, weighted),
      decode_case("slab_row_scales", sized(world_of(2, Routing::uniform), 61, 1296), rowwise, {{}}),
      decode_case("slab_mxfp8", sized(world_of(2, Routing::uniform), 61, 1072), blocks, {{}}),
      decode_case("slab_bytes", with_ones(sized(world_of(2, Routing::uniform), 61, 1296)), raw, weighted),
      decode_case("slab_bytes_many_tokens", sized(world_of(2, Routing::duplicates), 300, 528), raw, {{}}),
      decode_case("slab_nothing", world_of(2, Routing::nothing), slab, weighted),
      decode_case("slab_empty_rank", world_of(3, Routing::empty_rank), bytes, weighted),
      decode_case("slab_skew", world_of(4, Routing::one_expert), slab, weighted),
      decode_case("slab_wide_topk", world_of(2, Routing::duplicates, 31), slab, weighted),
      decode_case("expert_major_2_ranks", world_of(2, Routing::uniform), groups, weighted),
      decode_case("expert_major_ragged_3_ranks", world_of(3, Routing::ragged), groups, weighted),
      decode_case("expert_major_bytes", with_ones(world_of(3, Routing::ragged)), raw_groups, weighted),
      decode_case("expert_major_8_ranks", sized(world_of(8, Routing::uniform), 61, 640), groups, weighted),
      decode_case("expert_major_duplicates", world_of(2, Routing::duplicates), groups, weighted),
      decode_case("expert_major_dropped", world_of(2, Routing::uniform), groups, {{}}),
  };
  all.back().dispatch.capacity = 100;
  return all;
}

}  // namespace

const std::vector<StepCase>& decode_cases() {
  static const std::vector<StepCase> cases = make_decode_cases();
  return cases;
}

const std::vector<StepCase>& step_cases() {
  static const std::vector<StepCase> cases = make_cases();
  return cases;
}

const StepCase& step_case(const std::string& name) {
  const auto found = std::find_if(step_cases().begin(), step_cases().end(),
                                  [&](const StepCase& one) { return name == one.name; });
  if (found == step_cases().end()) fail(ErrorCode::usage, "no case {}", name);
  return *found;
}

MachineOptions options_for(const spec::World& world, const StepCase& played) {
  MachineOptions options;
  options.tags = played.tags;
  options.words = played.words;
  if (played.words) options.window_bytes = size_t{64} << 20;
  if (played.slots > 0) options.window_bytes = window_for(world, played.dispatch, played.slots);
  if (played.window_bytes > 0) options.window_bytes = played.window_bytes;
  return options;
}

Trace play(StepRank& rank, const StepCase& played) {
  Trace trace;
  trace.push_back(rank.plan());
  for (int round = 0; round < played.rounds; ++round) {
    expect(rank.send_dispatch(played.dispatch), "dispatch_send");
    expect(rank.read_headers(), "dispatch_headers");
    expect(rank.receive_dispatch(), "dispatch_receive");
    trace.push_back(rank.dispatched());
    for (const CombineCase& combine : played.combines) {
      expect(rank.send_combine(combine, static_cast<uint64_t>(round)), "combine_send");
      expect(rank.receive_combine(), "combine_receive");
      trace.push_back(rank.combined());
    }
  }
  return trace;
}

StepCase as_whole(StepCase played) {
  played.dispatch.fixed_size = true;
  played.tags = true;
  return played;
}

namespace {

Trace play_whole_by(StepRank& rank, const StepCase& played, bool wide_ids) {
  Trace trace;
  rank.take_plan(wide_ids);
  for (int round = 0; round < played.rounds; ++round) {
    expect(rank.whole_dispatch(played.dispatch, round == 0), "dispatch");
    if (round == 0) trace.push_back(rank.planned());
    trace.push_back(rank.dispatched());
    for (const CombineCase& combine : played.combines) {
      expect(rank.whole_combine(combine, static_cast<uint64_t>(round)), "combine");
      trace.push_back(rank.combined());
    }
  }
  return trace;
}

}  // namespace

Trace play_whole(StepRank& rank, const StepCase& played) { return play_whole_by(rank, played, false); }
Trace play_whole_of_wide_ids(StepRank& rank, const StepCase& played) { return play_whole_by(rank, played, true); }

std::vector<Trace> play_lockstep(std::vector<StepRank*> ranks, const StepCase& played) {
  std::vector<Trace> traces(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) traces[r].push_back(ranks[r]->plan());
  for (int round = 0; round < played.rounds; ++round) {
    for (StepRank* rank : ranks) rank->send_dispatch(played.dispatch);
    for (StepRank* rank : ranks) rank->read_headers();
    for (StepRank* rank : ranks) rank->receive_dispatch();
    for (StepRank* rank : ranks) rank->machine().backend().drain();
    for (size_t r = 0; r < ranks.size(); ++r) traces[r].push_back(ranks[r]->dispatched());
    for (const CombineCase& combine : played.combines) {
      for (StepRank* rank : ranks) rank->send_combine(combine, static_cast<uint64_t>(round));
      for (StepRank* rank : ranks) rank->receive_combine();
      for (StepRank* rank : ranks) rank->machine().backend().drain();
      for (size_t r = 0; r < ranks.size(); ++r) traces[r].push_back(ranks[r]->combined());
    }
  }
  for (StepRank* rank : ranks) expect(rank->ledger().fault_claimed == 0, "a step");
  return traces;
}

std::vector<Trace> play_whole_lockstep(std::vector<StepRank*> ranks, const StepCase& played) {
  std::vector<Trace> traces(ranks.size());
  const auto note = [&](auto tables) {
    for (StepRank* rank : ranks) rank->machine().backend().drain();
    for (size_t r = 0; r < ranks.size(); ++r) traces[r].push_back((ranks[r]->*tables)());
  };
  for (StepRank* rank : ranks) rank->take_plan();
  for (int round = 0; round < played.rounds; ++round) {
    for (StepRank* rank : ranks) rank->whole_dispatch(played.dispatch, round == 0);
    if (round == 0) note(&StepRank::planned);
    note(&StepRank::dispatched);
    for (const CombineCase& combine : played.combines) {
      for (StepRank* rank : ranks) rank->whole_combine(combine, static_cast<uint64_t>(round));
      note(&StepRank::combined);
    }
  }
  for (StepRank* rank : ranks) expect(rank->ledger().fault_claimed == 0, "a whole call");
  return traces;
}

void expect_same(const Trace& wanted, const Trace& seen, const std::string& where) {
  ASSERT_EQ(wanted.size(), seen.size()) << where;
  for (size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(wanted[i].size(), seen[i].size()) << where << ", step " << i;
    for (const auto& [name, bytes] : wanted[i]) {
      const auto found = seen[i].find(name);
      ASSERT_NE(found, seen[i].end()) << where << ", step " << i << ": " << name;
      EXPECT_EQ(first_difference(bytes, found->second), "") << where << ", step " << i << ": " << name;
    }
  }
}

}  // namespace heddle::testing
