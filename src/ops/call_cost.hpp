// How long an unsplit call takes on a GPU by its number of multiprocessors, and so how many are worth giving to it.
//
//   time = start + hypot(wire / link, work / SMs)      work = rows x kRow + stored or summed bytes / rate of one SM
//
// The link and the SMs work at the same time, each delayed by the other: hence neither the sum nor the larger of both.
// The constants are fitted to the table of whole calls in docs/performance.md (2 x H200, 24, 64 and 132 SMs), which the
// model meets within 12 %; bench/cuda_main.cpp prints both.
#pragma once

#include <cstdint>

#include "layout/shape.hpp"

#include <heddle/topology.hpp>

namespace heddle {

/// What a rank has to move in one call.
struct CallCost {
  double wire_bytes = 0;   // to other ranks; those that come are taken to be as many
  double wire_rows = 0;    // sent and received, the rank's own among them
  double local_bytes = 0;  // stored into outputs or slots by the rank itself; of a combine, loaded and summed
  bool is_combine = false;
  bool is_grouped = false;  // a dispatch whose output is grouped by expert
  bool is_packed = false;   // a combine of narrow results: what packing takes is not modelled

  /// Expected for routing that is uniform, with as many tokens on every rank.
  static CallCost of(const Topology&, const Shape&, int64_t tokens);

  double microseconds(int sms) const;
  /// The fewest of `most` multiprocessors that come within 3 % of the time of all of them; at least one. All, if that is not known.
  int enough_sms(int most) const;

 private:
  double start() const;
  double on_one_sm() const;
};

}  // namespace heddle
