// What all ranks of a simulation do: the same calls in the same order, in segments that may each meet one trouble and end
// with a reset(). Drawn from a seed, or written out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <heddle/layout.hpp>

#include "layout/window.hpp"

namespace heddle::testing {

enum class Do {
  dispatch,
  combine,
  refuse,  // `rank` refuses a dispatch (or, with `of`, a combine) that the others make
  starve,  // `rank` finds no memory for what a dispatch brings, when the others have sent already
  mask,    // `rank` masks `peer` by hand
  stall,   // `rank` comes later than any deadline
  die      // `rank` stops, after `puts` more puts: perhaps in the middle of a later call
};

/// Where the weights of a combine come from.
enum class Sum { plain, at_owner, late, alone };

struct Step {
  Do what = Do::dispatch;
  Layout layout{};
  bool split = false;
  int batch = 0;
  int of = -1;  // combine: the segment's step that dispatched
  Sum sum = Sum::plain;
  bool fixed = false;
  int rank = 0;
  int peer = 0;
  int puts = 0;
};

struct Segment {
  std::vector<Step> steps;
  bool may_fault = false;  // a rank comes late or not at all
  bool may_mask = false;
  int dead = -1;           // who is gone from here on
  bool resets = false;
};

/// One rank's tokens: [tokens][topk] expert ids, -1 = none, and whole weights.
struct RankBatch {
  int tokens = 0;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

struct Program {
  uint64_t seed = 0;
  int ranks = 2;
  int experts = 4;
  int topk = 2;
  int max_tokens = 3;
  int slots = 3;             // a pair, of the tightest call
  bool mask_late = false;
  bool in_place = false;
  bool direct = false;       // the port stores at once
  bool halves = false;
  std::vector<std::vector<RankBatch>> batches;  // [batch][rank]
  std::vector<Segment> segments;

  int64_t window_bytes() const;
  std::string describe() const;
};

inline constexpr int kHidden = 4;                // f32: 16 bytes a row, whole numbers exact to 2^24
inline constexpr uint64_t kTimeout = 1'000'000;  // ns of a time that is not real

Program draw_program(uint64_t seed);

/// Two ranks with two batches of one token each: rank 0's hits an expert of either rank, rank 1's one of rank 0.
Program tiny_program(std::vector<Step> steps);

}  // namespace heddle::testing
