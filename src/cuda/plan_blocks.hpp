// The plan by many blocks at once: the fast twin of protocol/plan.hpp, which leaves the same tensors. Each block takes a run of
// tokens, a tile at a time, with a bit a token for every expert and rank: a token's ordinal is then a count of bits, whatever
// the order of the threads. Between its two passes the blocks meet once.
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "device/block.hpp"
#include "protocol/ids.hpp"
#include "protocol/plan.hpp"

namespace heddle {

inline constexpr int kLeastTile = 128;  // tokens; smaller ones make more blocks whose counts all add up
inline constexpr int kMostTile = 256;
inline constexpr int kTileWords = kMostTile / 32;

/// A set of the tokens of one tile.
struct TileSet {
  uint32_t words[kTileWords];

  /// Whether it was there.
  HEDDLE_HD bool add(int token) { return or_shared(&words[token / 32], 1u << (token % 32)) >> (token % 32) & 1; }
  HEDDLE_HD bool has(int token) const { return words[token / 32] >> (token % 32) & 1; }
  HEDDLE_HD int count() const {
    int bits = 0;
    for (uint32_t word : words) bits += count_bits(word);
    return bits;
  }
  /// Tokens of the set before `token`.
  HEDDLE_HD int before(int token) const {
    int bits = count_bits(words[token / 32] & ((1u << (token % 32)) - 1));
    for (int word = 0; word < token / 32; ++word) bits += count_bits(words[word]);
    return bits;
  }
};

/// Bytes of shared memory a block needs.
HEDDLE_HD constexpr int64_t plan_shared_bytes(const Topology& topo) {
  const int64_t columns = int64_t{topo.world} + topo.experts;
  return columns * static_cast<int64_t>(sizeof(TileSet) + 2 * sizeof(int32_t)) + static_cast<int64_t>(sizeof(uint32_t));
}

template <class Coop>
class BlockPlanner {
 public:
  /// `memory`: the block's, plan_shared_bytes() of it, 16-aligned.
  HEDDLE_HD BlockPlanner(const Coop& coop, const Topology& topo, const PlanView& plan, std::byte* memory,
                         const GivenIds& given = {})
      : coop_(coop), topo_(topo), plan_(plan), given_(given), columns_(topo.world + topo.experts),
        tile_tokens_(tile_for(static_cast<int>(ceil_div(plan.tokens, coop.blocks())))) {
    sets_ = reinterpret_cast<TileSet*>(memory);
    totals_ = reinterpret_cast<int32_t*>(sets_ + columns_);
    pairs_ = totals_ + columns_;
    offsets_ = pairs_ + topo.experts;
    repeats_ = reinterpret_cast<uint32_t*>(offsets_ + topo.world);
  }

  /// All blocks meet between the two. Before the first, the memory may hold anything; after the second, it may be used.
  HEDDLE_HD void count() const {
    each(columns_, [&](int column) { totals_[column] = 0; });
    each(topo_.experts, [&](int expert) { pairs_[expert] = 0; });
    if (coop_.thread() == 0) *repeats_ = 0;
    for (int tile = first_tile(coop_.block()); tile < first_tile(coop_.block() + 1); ++tile) {
      take(tile);
      gather(tile, true);
      each(columns_, [&](int column) { totals_[column] += sets_[column].count(); });
    }
    publish();
  }

  HEDDLE_HD void assign_all() const {
    start_from_earlier_blocks();
    for (int tile = first_tile(coop_.block()); tile < first_tile(coop_.block() + 1); ++tile) {
      if (num_tiles(coop_.block()) > 1) gather(tile, false);
      assign(tile);
      coop_.block_sync();
      each(columns_, [&](int column) { totals_[column] += sets_[column].count(); });
      coop_.block_sync();
    }
  }

 private:
  template <class Item>
  HEDDLE_HD void each(int count, Item item) const {
    for (int i = coop_.thread(); i < count; i += coop_.threads()) item(i);
  }

  /// Tokens dealt out once are cheaper than two tiles for some blocks.
  HEDDLE_HD static int tile_for(int share) {
    const int whole = (share + 31) / 32 * 32;
    return whole < kLeastTile ? kLeastTile : whole > kMostTile ? kMostTile : whole;
  }
  HEDDLE_HD int tiles() const { return static_cast<int>(ceil_div(plan_.tokens, tile_tokens_)); }
  /// Blocks that have tiles: the first ones. The last block of all has the least to do, and writes what is the whole batch's.
  HEDDLE_HD int sharers() const { return tiles() < coop_.blocks() ? tiles() : coop_.blocks(); }
  HEDDLE_HD int first_tile(int block) const {
    if (block >= sharers()) return tiles();
    return static_cast<int>(static_cast<int64_t>(tiles()) * block / sharers());
  }
  HEDDLE_HD int num_tiles(int block) const { return first_tile(block + 1) - first_tile(block); }
  HEDDLE_HD int tokens_of(int tile) const {
    const int left = plan_.tokens - tile * tile_tokens_;
    return left < tile_tokens_ ? left : tile_tokens_;
  }
  HEDDLE_HD const int32_t* columns_of(int64_t token) const { return plan_.ids + token * plan_.topk; }
  /// A block's counts: [R] tokens for each rank, [E] rows, [E] pairs of each expert.
  HEDDLE_HD int32_t* counts(int block) const {
    return plan_.scratch + static_cast<int64_t>(block) * (topo_.world + 2 * topo_.experts);
  }

  /// The tile's ids from the caller's table: only this block reads them, after its next meeting.
  HEDDLE_HD void take(int tile) const {
    if (given_.table.data == nullptr) return;
    const int64_t first = int64_t{tile} * tile_tokens_ * plan_.topk;
    each(tokens_of(tile) * plan_.topk, [&](int i) {
      plan_.ids[first + i] = taken_id(given_.table, first + i, topo_.experts, given_.bad);
    });
  }

  /// The sets of one tile: ranks first, then experts.
  HEDDLE_HD void gather(int tile, bool count_pairs) const {
    coop_.block_sync();
    each(columns_, [&](int column) { sets_[column] = {}; });
    coop_.block_sync();
    const int64_t first = int64_t{tile} * tile_tokens_;
    if (plan_.topk == 0) {
      each(tokens_of(tile) * topo_.world, [&](int i) {
        if (plan_.in_rank[first * topo_.world + i] != 0) sets_[i % topo_.world].add(i / topo_.world);
      });
    }
    each_id(tile, [&](int i, int32_t id) {
      if (id < 0) return;
      sets_[topo_.owner_of(id)].add(i / plan_.topk);
      if (sets_[topo_.world + id].add(i / plan_.topk)) or_shared(repeats_, 1);
      if (count_pairs) add_shared(&pairs_[id], 1);
    });
    coop_.block_sync();
  }

  /// item(i, id) for each column i of the tile's tokens.
  template <class Item>
  HEDDLE_HD void each_id(int tile, Item item) const {
    constexpr int kAhead = 4;  // loads that are waited for together
    const int32_t* ids = columns_of(int64_t{tile} * tile_tokens_);
    const int count = tokens_of(tile) * plan_.topk;
    for (int first = coop_.thread(); first < count; first += kAhead * coop_.threads()) {
      int32_t held[kAhead];
      for (int h = 0; h < kAhead; ++h) held[h] = first + h * coop_.threads() < count ? ids[first + h * coop_.threads()] : -1;
      for (int h = 0; h < kAhead; ++h) {
        if (first + h * coop_.threads() < count) item(first + h * coop_.threads(), held[h]);
      }
    }
  }

  HEDDLE_HD void publish() const {
    coop_.block_sync();
    if (coop_.block() >= sharers()) return;
    each(columns_, [&](int column) { counts(coop_.block())[column] = totals_[column]; });
    each(topo_.experts, [&](int expert) { counts(coop_.block())[columns_ + expert] = pairs_[expert]; });
  }

  /// totals_ becomes what the blocks before this one have; offsets_ where each rank's tokens start.
  HEDDLE_HD void start_from_earlier_blocks() const {
    const bool writes = coop_.block() == coop_.blocks() - 1;
    if (!writes && num_tiles(coop_.block()) == 0) return;
    each(columns_ + topo_.experts, [&](int column) {
      int32_t before = 0, all = 0;
      constexpr int kAhead = 16;  // loads that are waited for together
      const int blocks = sharers();
      for (int first = 0; first < blocks; first += kAhead) {
        int32_t own[kAhead];
        for (int i = 0; i < kAhead; ++i) own[i] = first + i < blocks ? counts(first + i)[column] : 0;
        for (int i = 0; i < kAhead; ++i) {
          if (first + i < coop_.block()) before += own[i];
          all += own[i];
        }
      }
      if (column < columns_) totals_[column] = before;
      if (column < topo_.world) offsets_[column] = all;
      if (!writes) return;
      if (column < topo_.world) plan_.per_rank[column] = all;
      else if (column < columns_) plan_.rows[column - topo_.world] = all;
      else plan_.pairs[column - columns_] = all;
    });
    coop_.block_sync();
    if (coop_.thread() == 0) offset_ranks(writes);
    coop_.block_sync();
  }

  HEDDLE_HD void offset_ranks(bool writes) const {
    int32_t start = 0;
    for (int rank = 0; rank < topo_.world; ++rank) {
      const int32_t own = offsets_[rank];
      offsets_[rank] = start;
      if (writes) plan_.send_offset[rank] = start;
      start += own;
    }
    if (writes) plan_.send_offset[topo_.world] = start;
  }

  HEDDLE_HD void assign(int tile) const {
    const int first = tile * tile_tokens_;
    const bool repeats = *repeats_ != 0;
    each(tokens_of(tile) * topo_.world, [&](int i) {
      const int token = i / topo_.world, rank = i % topo_.world;
      const bool goes = sets_[rank].has(token);
      if (plan_.topk > 0) plan_.in_rank[static_cast<int64_t>(first) * topo_.world + i] = goes;
      if (goes) plan_.send_tokens[offsets_[rank] + totals_[rank] + sets_[rank].before(token)] = first + token;
    });
    each_id(tile, [&](int i, int32_t id) {
      const int token = i / plan_.topk;
      const int column = topo_.world + id;
      const bool counts = id >= 0 && (!repeats || is_first_of_expert(columns_of(first + token), i % plan_.topk));
      plan_.ordinals[static_cast<int64_t>(first) * plan_.topk + i] =
          counts ? totals_[column] + sets_[column].before(token) : -1;
    });
  }

  const Coop& coop_;
  Topology topo_;
  PlanView plan_;
  GivenIds given_;
  int columns_;
  TileSet* sets_;
  int32_t* totals_;
  int32_t* pairs_;
  int32_t* offsets_;
  uint32_t* repeats_;  // not 0: a token of this block chose an expert twice
  int tile_tokens_;
};

/// At most as many blocks as lanes that PlanView::scratch was made for.
template <class Coop>
HEDDLE_HD void make_plan_by_blocks(const Coop& coop, const Topology& topo, const PlanView& plan, const GivenIds& given = {}) {
  const BlockPlanner<Coop> planner(coop, topo, plan, coop.shared(), given);
  planner.count();
  coop.sync();
  planner.assign_all();
}

}  // namespace heddle
