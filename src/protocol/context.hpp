// What is fixed when a buffer is born, and the faults and masks that its steps meet (I9, I10).
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/coop.hpp"
#include "layout/topology.hpp"
#include "layout/window.hpp"
#include "layout/words.hpp"
#include "protocol/ledger.hpp"
#include "protocol/port.hpp"

namespace heddle {

struct Context {
  Topology topo;
  Window window;
  Ledger* ledger = nullptr;
  uint64_t timeout_ns = 0;
  bool mask_late_peers = false;  // a peer that misses the deadline is masked instead of faulting the call
  bool in_place = false;         // throughput dispatches exchange offers (I14)
  bool tags = false;             // pieces of rows are announced by tags, too (pieces.hpp); the same on all ranks
};

/// What every step needs to know of its call.
struct Call {
  Context ctx;
  Shape shape;
  CallState* state = nullptr;
  Refusal refusal;  // set: this rank refuses the call (I7): it sends no rows, and receives and discards
  int64_t* waits = nullptr;  // [R] statistics: gets the nanoseconds added that this rank waited for each peer's counts
};

/// Adds to the statistics of a call what one lane waits for a peer.
template <class Port>
class WaitClock {
 public:
  HEDDLE_HD WaitClock(Port& port, const Call& call, int peer)
      : port_(port), total_(call.waits == nullptr ? nullptr : call.waits + peer), begin_(total_ == nullptr ? 0 : port.now()) {}
  HEDDLE_HD void stop() const {
    if (total_ != nullptr) *total_ += static_cast<int64_t>(port_.now() - begin_);
  }

 private:
  Port& port_;
  int64_t* total_;
  uint64_t begin_;
};

/// Rows are self-announcing words, which only the decode pumps move (cuda/decode.hpp).
HEDDLE_HD inline bool uses_words(const Context& ctx, const Shape& shape) {
  return ctx.window.word_bytes() > 0 && fits_words(shape, ctx.topo.world, ctx.window.word_bytes());
}

HEDDLE_HD inline bool offers_rows(const Context& ctx, const Shape& shape) {
  if (uses_words(ctx, shape)) return false;
  return ctx.in_place && !ctx.mask_late_peers && shape.kind == Kind::dispatch && !shape.split;
}

HEDDLE_HD inline const Cells& cells_of(const std::byte* window, const Context& ctx, int source) {
  return *reinterpret_cast<const Cells*>(window + ctx.window.cells(source));
}

/// Where in a window the counter lies that `source` advances there for this call.
HEDDLE_HD inline int64_t counter_at(const Call& call, int source, Awaited awaited) {
  const int64_t lane = call.state->lane;
  const int64_t cell = (static_cast<int64_t>(call.shape.kind) * kLanes + lane) * 8;
  const int64_t cells = call.ctx.window.cells(source);
  switch (awaited) {
    case Awaited::credit: return cells + static_cast<int64_t>(offsetof(Cells, credits)) + cell;
    case Awaited::header: return cells + static_cast<int64_t>(offsetof(Cells, headers)) + cell;
    case Awaited::rows: return cells + static_cast<int64_t>(offsetof(Cells, rows)) + cell;
    case Awaited::offer: return cells + static_cast<int64_t>(offsetof(Cells, offers)) + lane * 8;
    case Awaited::reset: return cells + static_cast<int64_t>(offsetof(Cells, reset));
  }
  return cells;
}

/// Keeps the first fault of a call; true if this was it.
HEDDLE_HD inline bool claim_fault(const Context& ctx, const Fault& fault) {
  if (!claim(&ctx.ledger->fault_claimed)) return false;
  ctx.ledger->fault = fault;
  return true;
}

/// Masks a peer here and tells it, so that its waits for this rank end at once (I10).
template <class Port>
HEDDLE_HD void close_pair(Port& port, const Context& ctx, int peer) {
  store_release(&ctx.ledger->mask[peer], static_cast<uint64_t>(Mask::suspect));
  port.add(peer, ctx.window.cells(ctx.topo.rank) + static_cast<int64_t>(offsetof(Cells, closed)), 1);
}

/// Tells every peer that this rank has left the call, and whom it had waited for. After the step, by one thread.
template <class Port>
HEDDLE_HD void publish_fault(Port& port, const Context& ctx) {
  const Fault& fault = ctx.ledger->fault;
  for (int peer = 0; peer < ctx.topo.world; ++peer) {
    if (peer == ctx.topo.rank || !ctx.ledger->is_open(peer)) continue;
    const int64_t cells = ctx.window.cells(ctx.topo.rank);
    const Target target{.peer = peer, .offset = cells + static_cast<int64_t>(offsetof(Cells, fault))};
    std::byte* at = port.stage(target, sizeof(FaultCell));
    *reinterpret_cast<FaultCell*>(at) = {.incarnation = ctx.ledger->incarnation, .seq = fault.seq, .hash = fault.hash,
                                         .kind = static_cast<uint32_t>(fault.kind), .awaited = fault.peer};
    const int64_t counter = cells + static_cast<int64_t>(offsetof(Cells, faults));
    port.put(target, at, sizeof(FaultCell), counter);
    port.flush(Solo{}, peer, counter, 1);
  }
}

/// Tells every peer that this rank has destroyed its buffer.
template <class Port>
HEDDLE_HD void announce_destroyed(Port& port, const Context& ctx) {
  const int64_t counter = ctx.window.cells(ctx.topo.rank) + static_cast<int64_t>(offsetof(Cells, destroyed));
  for (int peer = 0; peer < ctx.topo.world; ++peer) port.add(peer, counter, 1);
}

}  // namespace heddle
