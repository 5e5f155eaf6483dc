// What a rank whose puts are held (MachineOptions::held_writer) has written in a call, and how much of it arrives.
#pragma once

#include "support/step_rank.hpp"

namespace heddle::testing {

/// By the writer, once the call has ended there. The first call of its kind.
class HeldRows {
 public:
  HeldRows(StepRank&, const Call&, bool words);

  /// What says how many rows come.
  void deliver_headers() const;
  void deliver_rows() const;
  /// Words only: so many whole rows, by slot, and half of the next.
  void deliver_some(int rows) const;

 private:
  int64_t cell(size_t field) const;

  Machine& machine_;
  const Call& call_;
  WordRegion region_;
  int64_t words_at_ = 0;
  int64_t range_at_ = 0;
  bool words_;
};

}  // namespace heddle::testing
