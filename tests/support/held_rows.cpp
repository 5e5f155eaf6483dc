#include "support/held_rows.hpp"

#include "protocol/call.hpp"

namespace heddle::testing {

HeldRows::HeldRows(StepRank& rank, const Call& call, bool words)
    : machine_(rank.machine()), call_(call),
      region_(WordRegion::of(call.shape, call.ctx.topo.world, call.ctx.window.word_bytes())),
      words_at_(call.ctx.window.words(call.shape.kind, 0, call.ctx.topo.rank)),
      range_at_(call.ctx.window.range(call.shape.kind, 0, call.ctx.topo.rank)), words_(words) {}

int64_t HeldRows::cell(size_t field) const {
  return call_.ctx.window.cells(call_.ctx.topo.rank) + static_cast<int64_t>(field) +
         static_cast<int64_t>(call_.shape.kind) * kLanes * int64_t{sizeof(uint64_t)};
}

void HeldRows::deliver_headers() const {
  if (words_) machine_.deliver(words_at_, region_.tagged_end);
  machine_.deliver(range_at_, range_of(call_).slots);
  machine_.deliver_counter(cell(offsetof(Cells, headers)));
}

void HeldRows::deliver_rows() const {
  if (words_) return machine_.deliver(words_at_ + region_.rows, region_.end - region_.rows);
  const Range range = range_of(call_);
  machine_.deliver(range_at_ + range.slots, call_.ctx.window.range_bytes() - range.slots);
  machine_.deliver_counter(cell(offsetof(Cells, rows)));
}

void HeldRows::deliver_some(int rows) const {
  machine_.deliver(words_at_ + region_.rows, (rows * 2 + 1) * (region_.row_words / 2) * int64_t{kWordBytes});
}

}  // namespace heddle::testing
