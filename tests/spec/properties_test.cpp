// What must hold for any routing, found without the spec's own loops: nothing lost, nothing doubled, nothing mixed up.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "support/routing.hpp"
#include "tiny_world.hpp"

namespace heddle::spec {
namespace {

using heddle::testing::kRoutings;
using heddle::testing::make_outputs;
using heddle::testing::make_world;
using heddle::testing::name_of;
using heddle::testing::Routing;
using heddle::testing::Values;
using heddle::testing::WorldOptions;

constexpr Layout kLayouts[] = {Layout::token_major, Layout::expert_major, Layout::slab};
constexpr int kMaxTokens = 13;

struct Size {
  int ranks, experts, topk;
};

/// One and many ranks, uneven experts, fewer experts than ranks, K = 1, K = E, K > E.
constexpr Size kSizes[] = {{1, 4, 2}, {2, 8, 2}, {3, 7, 4}, {4, 3, 3}, {5, 16, 8}, {3, 2, 5}, {2, 6, 1}};

class Properties : public ::testing::TestWithParam<std::tuple<Size, Routing>> {
 protected:
  World world(Values values = Values::exact) const {
    const auto [size, routing] = GetParam();
    return make_world({.routing = routing,
                       .ranks = size.ranks,
                       .tokens = kMaxTokens,
                       .topk = size.topk,
                       .experts = size.experts,
                       .hidden = 16,
                       .values = values,
                       .seed = 7});
  }
};

std::string label(const ::testing::TestParamInfo<Properties::ParamType>& info) {
  const auto [size, routing] = info.param;
  return std::string(name_of(routing)) + "_r" + std::to_string(size.ranks) + "_e" + std::to_string(size.experts) +
         "_k" + std::to_string(size.topk);
}

DispatchOptions options_of(Layout layout) {
  return {.layout = layout, .alignment = layout == Layout::slab ? 1 : 4, .max_tokens = kMaxTokens};
}

Bytes source_row(const World& world, int source, int token) {
  const auto row = world.batches[source].rows.begin() + token * world.row_bytes;
  return {row, row + world.row_bytes};
}

std::vector<Bytes> outputs_of(const World& world, const std::vector<Received>& received, DType dtype, Values values) {
  std::vector<Bytes> outputs;
  for (const Received& at : received) outputs.push_back(make_outputs(at, world.hidden, dtype, values, outputs.size()));
  return outputs;
}

// Case 6: a direct count of all ids is what the ranks count together, pairs or distinct by layout.
TEST_P(Properties, CountsAreThoseOfTheIds) {
  for (Layout layout : kLayouts) {
    std::vector<int> wanted(world().experts, 0);
    for (const Batch& batch : world().batches) {
      for (int token = 0; token < batch.tokens; ++token) {
        const auto begin = batch.ids.begin() + token * world().topk;
        std::multiset<int> ids(begin, begin + world().topk);
        ids.erase(-1);
        if (layout == Layout::token_major)
          for (int id : ids) ++wanted[id];
        else
          for (int id : std::set<int>(ids.begin(), ids.end())) ++wanted[id];
      }
    }
    std::vector<int> seen;
    for (const Received& at : dispatch(world(), options_of(layout))) {
      seen.insert(seen.end(), at.counts.begin(), at.counts.end());
    }
    EXPECT_EQ(seen, wanted);
  }
}

TEST_P(Properties, RowsCarryTheirTokensBytesOnce) {
  for (Layout layout : kLayouts) {
    const auto received = dispatch(world(), options_of(layout));
    for (const Received& at : received) {
      std::set<std::tuple<int, int, int>> seen;  // group, source, token
      for (int row = 0; row < at.rows; ++row) {
        if (at.row_source[row] < 0) continue;
        const Bytes x(at.x.begin() + row * at.row_bytes, at.x.begin() + (row + 1) * at.row_bytes);
        EXPECT_EQ(x, source_row(world(), at.row_source[row], at.row_token[row]));
        const auto end = std::upper_bound(at.expert_offsets.begin(), at.expert_offsets.end(), row);
        const int group = static_cast<int>(end - at.expert_offsets.begin());
        EXPECT_TRUE(seen.emplace(group, at.row_source[row], at.row_token[row]).second);
      }
    }
  }
}

// I1: the k-th token that the plan sends is the k-th that arrives, in every layout.
TEST_P(Properties, TokensArriveInTheSlotsOfThePlan) {
  const auto plans = plan(world());
  for (Layout layout : kLayouts) {
    const auto received = dispatch(world(), options_of(layout));
    for (int rank = 0; rank < world().ranks; ++rank) {
      for (int source = 0; source < world().ranks; ++source) {
        const auto& sent = plans[source].send_tokens;
        const auto& got = received[rank].recv_token;
        const std::vector<int> slots(sent.begin() + plans[source].send_offset[rank],
                                     sent.begin() + plans[source].send_offset[rank + 1]);
        const std::vector<int> arrived(got.begin() + received[rank].recv_offset[source],
                                       got.begin() + received[rank].recv_offset[source + 1]);
        EXPECT_EQ(arrived, slots);
      }
    }
  }
}

// An expert-major row is where the count table says: starts, then the sources before, then the sender's ordinal (I14).
TEST_P(Properties, RowsFollowFromCountsAndOrdinals) {
  const World world = this->world();
  const auto plans = plan(world);
  const auto received = dispatch(world, options_of(Layout::expert_major));
  for (int source = 0; source < world.ranks; ++source) {
    for (std::size_t cell = 0; cell < plans[source].ordinal.size(); ++cell) {
      if (plans[source].ordinal[cell] < 0) continue;
      const int expert = plans[source].ids[cell];
      int owner = 0;
      while (!owns(world, owner, expert)) ++owner;
      std::int64_t row = received[owner].expert_offsets[expert - first_expert(world, owner)];
      for (int before = 0; before < source; ++before) row += plans[before].rows_per_expert[expert];
      row += plans[source].ordinal[cell];
      EXPECT_EQ(received[owner].row_source[row], source);
      EXPECT_EQ(received[owner].row_token[row], static_cast<int>(cell) / world.topk);
    }
  }
}

// Whole numbers: all ways to combine must give the plain weighted sum over distinct experts, and each other's bits.
TEST_P(Properties, EveryCombineGivesTheDenseSum) {
  const World world = this->world();
  const auto expert_row = [&](int source, int token, int h,
                              int expert) {  // what expert e makes of a row: e odd negates
    const Floats row = bf16_values(source_row(world, source, token));
    return expert % 2 ? -row[h] : row[h];
  };
  std::vector<Floats> wanted(world.ranks);
  for (int source = 0; source < world.ranks; ++source) {
    const Batch& batch = world.batches[source];
    for (int token = 0; token < batch.tokens; ++token) {
      for (int h = 0; h < world.hidden; ++h) {
        float sum = 0;
        for (int k = 0; k < world.topk; ++k) {
          const int id = batch.ids[token * world.topk + k];
          if (id >= 0) sum += batch.weights[token * world.topk + k] * expert_row(source, token, h, id);
        }
        wanted[source].push_back(sum);
      }
    }
  }
  const auto compare = [&](const std::vector<Received>& received, const std::vector<Bytes>& outputs, bool once) {
    const auto combined =
        combine(world, received, outputs, {.weighted = received[0].layout != Layout::token_major, .unreduced = once});
    for (int source = 0; source < world.ranks; ++source) EXPECT_EQ(bf16_values(combined[source].x), wanted[source]);
  };
  for (Layout layout : {Layout::expert_major, Layout::slab}) {
    const auto received = dispatch(world, options_of(layout));
    std::vector<Bytes> outputs;
    for (int rank = 0; rank < world.ranks; ++rank) {
      const Received& at = received[rank];
      Floats rows(at.rows * world.hidden, kNan);
      for (int expert = 0; expert < local_experts(world, rank); ++expert) {
        for (auto row = at.expert_offsets[expert]; row < at.expert_offsets[expert] + at.counts[expert]; ++row) {
          for (int h = 0; h < world.hidden; ++h) {
            rows[row * world.hidden + h] =
                expert_row(at.row_source[row], at.row_token[row], h, first_expert(world, rank) + expert);
          }
        }
      }
      outputs.push_back(bf16_bytes(rows));
    }
    compare(received, outputs, false);
    compare(received, outputs, true);
  }
  const auto received = dispatch(world, {.max_tokens = kMaxTokens, .fixed_size = true});
  std::vector<Bytes> outputs;
  for (int rank = 0; rank < world.ranks; ++rank) {
    const Received& at = received[rank];
    Floats rows(at.rows * world.hidden, kNan);  // case 5: the padding is poison
    for (int row = 0; row < at.recv_offset.back(); ++row) {
      for (int h = 0; h < world.hidden; ++h) {
        float sum = 0;
        for (int k = 0; k < world.topk; ++k) {
          const int local = at.ids[row * world.topk + k];
          if (local < 0) continue;
          sum += at.weights[row * world.topk + k] *
                 expert_row(at.row_source[row], at.row_token[row], h, first_expert(world, rank) + local);
        }
        rows[row * world.hidden + h] = sum;
      }
    }
    outputs.push_back(bf16_bytes(rows));
  }
  compare(received, outputs, false);
}

// The slab and expert-major hold the same rows, so their results have the same bits, also where rounding bites.
TEST_P(Properties, SlabAndExpertMajorCombineAlike) {
  const World world = this->world(Values::random);
  const auto slab = dispatch(world, options_of(Layout::slab));
  const auto groups = dispatch(world, options_of(Layout::expert_major));
  const auto outputs = outputs_of(world, groups, DType::bf16, Values::random);
  std::vector<Bytes> moved;
  for (int rank = 0; rank < world.ranks; ++rank) {
    const std::size_t bytes = world.hidden * 2;
    moved.emplace_back(slab[rank].rows * bytes, std::byte{0xFF});
    for (std::size_t cell = 0; cell < slab[rank].row_of.size(); ++cell) {
      if (slab[rank].row_of[cell] < 0) continue;
      std::copy_n(outputs[rank].begin() + groups[rank].row_of[cell] * bytes, bytes,
                  moved[rank].begin() + slab[rank].row_of[cell] * bytes);
    }
  }
  for (bool unreduced : {false, true}) {
    const CombineOptions options{.weighted = true, .unreduced = unreduced};
    const auto left = combine(world, slab, moved, options);
    const auto right = combine(world, groups, outputs, options);
    for (int rank = 0; rank < world.ranks; ++rank) EXPECT_EQ(left[rank].x, right[rank].x);
  }
}

// A rank that masks all others is a world in which nobody else has a token for it.
TEST_P(Properties, MaskedPeersMightAsWellBeSilent) {
  World world = this->world();
  Mask mask(world.ranks, std::vector<bool>(world.ranks, false));
  for (int peer = 1; peer < world.ranks; ++peer) mask[0][peer] = true;
  const auto masked = dispatch(world, {}, mask);
  for (int peer = 1; peer < world.ranks; ++peer)
    std::fill(world.batches[peer].ids.begin(), world.batches[peer].ids.end(), -1);
  const auto silent = dispatch(world, {});
  EXPECT_EQ(masked[0].x, silent[0].x);
  EXPECT_EQ(masked[0].ids, silent[0].ids);
  EXPECT_EQ(masked[0].counts, silent[0].counts);
}

INSTANTIATE_TEST_SUITE_P(All, Properties,
                         ::testing::Combine(::testing::ValuesIn(kSizes), ::testing::ValuesIn(kRoutings)), label);

// Case 23: a token's result depends on its own rows alone, not on who else is in the batch.
TEST(Neighbours, DoNotChangeAToken) {
  const World all = make_world({.routing = Routing::holes,
                                .ranks = 3,
                                .tokens = 6,
                                .topk = 4,
                                .experts = 9,
                                .hidden = 8,
                                .values = Values::random,
                                .seed = 3});
  const auto combined_of = [](const World& world) {  // experts that return what they got
    const auto received = dispatch(world, {.layout = Layout::expert_major});
    std::vector<Bytes> outputs;
    for (const Received& at : received) outputs.push_back(at.x);
    return combine(world, received, outputs, {.weighted = true});
  };
  const auto together = combined_of(all);
  for (int token = 0; token < 6; ++token) {
    World alone = all;
    Batch& batch = alone.batches[1];
    batch = {.tokens = 1, .rows = source_row(all, 1, token), .scales = {}, .ids = {}, .rank_map = {}, .weights = {}};
    for (int k = 0; k < 4; ++k) {
      batch.ids.push_back(all.batches[1].ids[token * 4 + k]);
      batch.weights.push_back(all.batches[1].weights[token * 4 + k]);
    }
    const Bytes wanted(together[1].x.begin() + token * 16, together[1].x.begin() + (token + 1) * 16);
    EXPECT_EQ(combined_of(alone)[1].x, wanted);
  }
}

// The generators keep their promises, else the tests above prove little.
TEST(Routings, AreWhatTheirNamesSay) {
  const auto ids_of = [](Routing routing) {
    return make_world({.routing = routing, .ranks = 4, .tokens = 200, .topk = 4, .experts = 32, .hidden = 8}).batches;
  };
  std::map<int, int> seen;
  for (const Batch& batch : ids_of(Routing::zipf)) {
    for (int id : batch.ids) ++seen[id];
  }
  EXPECT_GT(seen[0], 4 * seen[20]);
  EXPECT_EQ(ids_of(Routing::empty_rank)[0].tokens, 0);
  EXPECT_EQ(ids_of(Routing::empty_rank)[1].tokens, 200);
  const auto to_one = ids_of(Routing::one_rank);
  for (int id : to_one[0].ids) EXPECT_GE(id, 24);
  const auto to_none = ids_of(Routing::nothing);
  for (int id : to_none[0].ids) EXPECT_EQ(id, -1);
  for (Routing routing : {Routing::uniform, Routing::zipf, Routing::holes, Routing::one_rank}) {
    const Ids ids = ids_of(routing)[2].ids;
    for (std::size_t token = 0; token < ids.size(); token += 4) {
      std::multiset<int> of_token(ids.begin() + token, ids.begin() + token + 4);
      of_token.erase(-1);
      EXPECT_EQ(std::set<int>(of_token.begin(), of_token.end()).size(), of_token.size()) << name_of(routing);
    }
  }
  std::set<int> tokens;
  for (const Batch& batch : ids_of(Routing::ragged)) tokens.insert(batch.tokens);
  EXPECT_GT(tokens.size(), 1u);
}

}  // namespace
}  // namespace heddle::spec
