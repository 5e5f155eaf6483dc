// The one way to wait: for an absolute total in this rank's own window, with a deadline, looking out for peers that fault,
// close the pair or go away (I9, I10).
#pragma once

#include <cstdint>

#include "protocol/context.hpp"

namespace heddle {

enum class Arrival : uint8_t { here, masked, fault, pending };

struct Wait {
  int peer = 0;
  Awaited awaited = Awaited::header;
  uint64_t wanted = 0;
  uint64_t deadline = 0;
  int64_t at = -1;  // where the word lies in this rank's window, if it is none of the counters
  bool is_one_of_many = false;  // others are looked at by turns
};

HEDDLE_HD inline bool a_peer_faulted(const std::byte* window, const Context& ctx) {
  for (int peer = 0; peer < ctx.topo.world; ++peer) {
    if (ctx.ledger->is_open(peer) && load_acquire(&cells_of(window, ctx, peer).faults) != 0) return true;
  }
  return false;
}

/// What has happened that ends a wait early; none if nothing has.
template <class Port>
HEDDLE_HD FaultCode look_out(Port& port, const Context& ctx, const Wait& wait) {
  const Cells& cells = cells_of(port.local(), ctx, wait.peer);
  if (load_acquire(&ctx.ledger->interrupted) != 0) return FaultCode::interrupted;
  if (load_acquire(&cells.destroyed) != 0) return FaultCode::peer_destroyed;
  if (a_peer_faulted(port.local(), ctx)) return FaultCode::peer_fault;
  if (port.now() > wait.deadline) return FaultCode::timeout;
  return FaultCode::none;
}

struct NoProbe {
  HEDDLE_HD bool operator()() const { return false; }
};

/// One look of a wait, by one lane. `probe` is asked for; true means that it claimed a fault. masked: the pair is closed, before
/// or by this look. fault: the ledger has the reason.
template <class Port, class Probe>
HEDDLE_HD Arrival look_for(Port& port, const Call& call, const Wait& wait, const Probe& probe) {
  const Context& ctx = call.ctx;
  const int64_t at = wait.at >= 0 ? wait.at : counter_at(call, wait.peer, wait.awaited);
  const auto* counter = reinterpret_cast<const uint64_t*>(port.local() + at);
  const Cells& cells = cells_of(port.local(), ctx, wait.peer);
  // A look at all else takes a GPU some 5 us, a look at the counter 0.7.
  const int looks = HEDDLE_ON_DEVICE && !wait.is_one_of_many ? 256 : 1;
  for (int look = 0; look < looks; ++look) {
    if (load_acquire(counter) >= wait.wanted) return Arrival::here;
  }
  if (!ctx.ledger->is_open(wait.peer)) return Arrival::masked;
  if (load_acquire(&cells.closed) != 0) {
    close_pair(port, ctx, wait.peer);
    return Arrival::masked;
  }
  if (ctx.ledger->is_faulted() || probe()) return Arrival::fault;
  const FaultCode reason = look_out(port, ctx, wait);
  // What the peer sent before it went away counts: look again after the sign, not before.
  if (reason == FaultCode::none || load_acquire(counter) >= wait.wanted) return Arrival::pending;
  if (ctx.mask_late_peers && reason != FaultCode::peer_fault && reason != FaultCode::interrupted) {
    close_pair(port, ctx, wait.peer);
    return Arrival::masked;
  }
  claim_fault(ctx, {.code = reason, .awaited = wait.awaited, .kind = call.shape.kind, .peer = wait.peer,
                    .seq = call.state->seq, .wanted = wait.wanted, .seen = load_acquire(counter),
                    .hash = call.shape.hash()});
  return Arrival::fault;
}

/// One lane waits until the counter shows `wanted`; never pending.
template <class Port, class Probe = NoProbe>
HEDDLE_HD Arrival await(Port& port, const Call& call, const Wait& wait, Probe probe = {}) {
  for (int attempt = 0;; ++attempt) {
    const Arrival arrival = look_for(port, call, wait, probe);
    if (arrival != Arrival::pending) return arrival;
    port.relax(attempt);
  }
}

}  // namespace heddle
