// Low-latency calls whose rows are self-announcing words (layout/words.hpp): one launch a phase, no meeting of blocks on the
// way, nothing announced. The kernels are the only way to move such rows, so who uses them is uses_words() of protocol/, a
// function of what all ranks agree on. They leave what the plain steps leave.
//
// These kernels are device code only: their lanes exchange by shuffles and 16-byte accesses, which no host coop has.
#pragma once

#include <cstdint>

#include "cuda/kernels.hpp"
#include "layout/words.hpp"
#include "protocol/combine_args.hpp"
#include "protocol/dispatch_args.hpp"

namespace heddle {

/// 15 warps move rows; with a sixteenth, each thread has 128 registers.
inline constexpr int kDecodeThreads = 480;
/// One more warp, the clerk, keeps the books: ledger, header, credits.
inline constexpr int kDecodeBlock = kDecodeThreads + 32;
inline constexpr int kMostDecodeBlocks = 256;

/// Credits of a call that has been received whole. The owner's next step gives them: a kernel's end, which it has behind it,
/// shows that all blocks are done, and costs nothing.
struct OwedCredits {
  uint64_t peers = 0;  // bit r: one credit for rank r
  uint32_t kind = 0;
  uint32_t lane = 0;
};

/// Of one buffer, in device memory; zero at first and after a reset.
struct DecodeState {
  uint32_t arrived = 0;  // blocks that have read the ledger
  uint32_t closer = 0;   // 1: a block closes the call
  uint32_t unusual = 0;  // 1: a fault, or a rank that refused
  OwedCredits owed;
  uint32_t repeats = 0;  // 1: a token names an expert twice, in a plan that the call in progress makes
  uint64_t lost = 0;     // bit r: a deadline masked rank r in the call in progress
  uint64_t decided[kMostWordRanks] = {};  // decide_source() of a dispatch, in buffers that mask by deadline
  uint64_t done[kMostDecodeBlocks] = {};  // mark() of the launch that the block has finished
};

/// The phases of one launch.
inline constexpr uint32_t kSendPhase = 1;
inline constexpr uint32_t kReceivePhase = 2;

/// Division of numbers below 2^32 / divisor, or by 1.
struct Divider {
  uint32_t divisor = 1;
  uint32_t reciprocal = 0;

  static Divider by(int divisor) {
    return {static_cast<uint32_t>(divisor), static_cast<uint32_t>((uint64_t{1} << 32) / static_cast<uint32_t>(divisor)) + 1};
  }
};

/// Where a dispatch finds its ids, in words of 32 bits: a wide id has two, the low one first.
struct DecodeIds {
  const int32_t* words = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 0;
  bool wide = false;
  uint64_t* bad = nullptr;  // gets the place + 1 of an id out of range; null: nobody is told

  static DecodeIds of(const DispatchArgs& args, uint64_t* bad) {
    const TableView& ids = args.ids;
    if (ids.data == nullptr) return {.words = args.plan.ids, .row_stride = args.plan.topk, .column_stride = 1};
    const bool wide = ids.dtype == DType::i64;
    return {.words = static_cast<const int32_t*>(ids.data), .row_stride = ids.row_stride << wide,
            .column_stride = ids.column_stride << wide, .wide = wide, .bad = bad};
  }
};

/// What a launch needs beside its arguments. All that the host can work out is in here: kernels that run for some
/// microseconds spend most of them on code that they come to for the first time.
struct DecodeSite {
  uint64_t hash = 0;  // of the call's shape
  WordRegion region;
  int64_t words[kLanes] = {};  // where in a window the words of rank 0 lie, and those of the next rank from there
  int64_t pitch = 0;
  Divider parts;
  Divider topk;
  Divider ranks;
  DecodeIds ids;  // of a dispatch, and so what follows
  Divider notes;  // words of one source's: the note, and its table
  int32_t first_expert = 0;
  int32_t num_local = 0;
  int32_t owners_at = 0;  // in a block's own memory
  int32_t places_at = 0;
  uint32_t phases = kSendPhase | kReceivePhase;
  bool lets_next_start = false;  // before this launch has ended

  static DecodeSite of(const Call& call, uint32_t phases) {
    DecodeSite site;
    site.hash = call.shape.hash();
    site.region = WordRegion::of(call.shape, call.ctx.topo.world, call.ctx.window.word_bytes());
    for (int lane = 0; lane < kLanes; ++lane) site.words[lane] = call.ctx.window.words(call.shape.kind, lane, 0);
    site.pitch = call.ctx.window.words(call.shape.kind, 0, 1) - site.words[0];
    site.parts = Divider::by(site.region.parts);
    site.topk = Divider::by(call.shape.topk);
    site.ranks = Divider::by(call.ctx.topo.world);
    site.phases = phases;
    return site;
  }

  /// What only a dispatch needs.
  void add(const DispatchArgs&, uint64_t* bad_id);

  HEDDLE_HD bool sends() const { return (phases & kSendPhase) != 0; }
  HEDDLE_HD bool receives() const { return (phases & kReceivePhase) != 0; }
};

/// Arguments: (DirectPort, DispatchArgs or CombineArgs, Site, DecodeSite); at most kMostDecodeBlocks of kDecodeBlock threads.
struct DecodeKernels {
  const void* dispatch = nullptr;
  const void* combine = nullptr;
  const void* combine_masking = nullptr;  // a warp has all of a token's row, so that a deadline takes it whole

  const void* of(const DispatchArgs&) const { return dispatch; }
  const void* of(const CombineArgs& args) const { return args.call.ctx.mask_late_peers ? combine_masking : combine; }
};

const DecodeKernels& decode_kernels();

/// Which tokens go to one rank or expert: a bit each, and how many go there before each word of bits.
struct TokenSets {
  int words = 0;  // of 32 tokens

  HEDDLE_HD static TokenSets of(int tokens) { return {.words = static_cast<int>(ceil_div(tokens > 0 ? tokens : 1, 32))}; }
  HEDDLE_HD int64_t bytes(int columns) const {
    return int64_t{columns} * (words * int64_t{sizeof(uint32_t)} + (words + 1) * int64_t{sizeof(uint16_t)});
  }
};

/// A block's own memory, beside what the kernel itself declares: a dispatch's sets and owners of experts, then the places of
/// rows here; a combine's sets.
inline int64_t decode_sets_bytes(const DispatchArgs& args) {
  const Topology& topo = args.call.ctx.topo;
  return round_up(TokenSets::of(args.plan.tokens).bytes(topo.world + topo.experts), 16);
}
inline int64_t decode_routes_bytes(const DispatchArgs& args) {
  return decode_sets_bytes(args) + round_up(args.call.ctx.topo.experts, 16);
}
inline int64_t decode_shared_bytes(const DispatchArgs& args) {
  const Topology& topo = args.call.ctx.topo;
  const int64_t local = topo.num_local(topo.rank);
  return decode_routes_bytes(args) + (local * (topo.world + 2) + 1) * int64_t{sizeof(int32_t)};
}
inline void DecodeSite::add(const DispatchArgs& args, uint64_t* bad_id) {
  const Topology& topo = args.call.ctx.topo;
  ids = DecodeIds::of(args, bad_id);
  first_expert = topo.first_expert(topo.rank);
  num_local = topo.num_local(topo.rank);
  notes = Divider::by((num_local + 1) / 2 + 1);
  owners_at = static_cast<int32_t>(decode_sets_bytes(args));
  places_at = static_cast<int32_t>(decode_routes_bytes(args));
}

inline int64_t decode_shared_bytes(const CombineArgs& args) {
  return round_up(TokenSets::of(args.plan.tokens).bytes(args.call.ctx.topo.world), 16);
}

}  // namespace heddle
