#include "ops/fault_report.hpp"

#include <fmt/format.h>

namespace heddle {
namespace {

bool has_reported(Backend& backend, const Context& ctx, int peer) {
  return load_acquire(&cells_of(backend.window(), ctx, peer).faults) != 0;
}

bool takes_part(const Context& ctx, int peer) { return peer != ctx.topo.rank && ctx.ledger->is_open(peer); }

bool all_reported(Backend& backend, const Context& ctx) {
  for (int peer = 0; peer < ctx.topo.world; ++peer) {
    if (takes_part(ctx, peer) && !has_reported(backend, ctx, peer)) return false;
  }
  return true;
}

const char* what_of(Awaited awaited) {
  switch (awaited) {
    case Awaited::credit: return "credit";
    case Awaited::header: return "header";
    case Awaited::rows: return "rows";
    case Awaited::offer: return "offer";
    case Awaited::reset: return "reset";
  }
  return "?";
}

std::string describe_mismatch(const Context& ctx, const Fault& fault) {
  const auto peer_kind = static_cast<Kind>(fault.peer_kind);
  if (fault.kind != peer_kind) {
    return fmt::format("rank {} makes a {} where rank {} makes a {}: all ranks must issue the same calls in the same order",
                       fault.peer, name_of(peer_kind), ctx.topo.rank, name_of(fault.kind));
  }
  if (fault.hash != fault.peer_hash) {
    return fmt::format("rank {}'s arguments differ from rank {}'s (hash {:016x}, here {:016x}): layout, hidden, dtype, topk, "
                       "experts, alignment, max_tokens, weights and split must be the same on all ranks",
                       fault.peer, ctx.topo.rank, fault.peer_hash, fault.hash);
  }
  return fmt::format("rank {}'s header does not fit this call (its seq {}, here {}; or its handle is of another batch)",
                     fault.peer, fault.seen, fault.wanted);
}

/// This rank left the call because a peer did. If that peer was in another call, or in the same with other arguments,
/// then this is the reason, here too. A refused call has no arguments to compare.
void adopt_mismatch(Backend& backend, const Context& ctx) {
  Fault& own = ctx.ledger->fault;
  const uint64_t refused = Shape{.kind = own.kind}.hash();
  for (int peer = 0; peer < ctx.topo.world && own.code == FaultCode::peer_fault; ++peer) {
    if (!takes_part(ctx, peer) || !has_reported(backend, ctx, peer)) continue;
    const FaultCell& cell = cells_of(backend.window(), ctx, peer).fault;
    const bool same_call = cell.kind == static_cast<uint32_t>(own.kind) && cell.hash == own.hash;
    if (cell.seq != own.seq || same_call || own.hash == refused || cell.hash == refused) continue;
    own.code = FaultCode::mismatch;
    own.peer = peer;
    own.peer_kind = cell.kind;
    own.peer_hash = cell.hash;
  }
}

}  // namespace

const char* name_of(Kind kind) { return kind == Kind::dispatch ? "dispatch" : "combine"; }

int find_culprit(Backend& backend, const Context& ctx) {
  const Fault& own = ctx.ledger->fault;
  if (own.code == FaultCode::unreceived || own.code == FaultCode::peer_destroyed || own.code == FaultCode::interrupted) {
    return own.peer;
  }
  const uint64_t deadline = backend.now() + ctx.timeout_ns;
  for (int attempt = 0; !all_reported(backend, ctx) && backend.now() < deadline; ++attempt) backend.relax(attempt);

  const int own_awaited = own.peer;
  adopt_mismatch(backend, ctx);
  RankSet awaited;
  awaited.add(own_awaited);
  int first_awaited = own_awaited;
  uint64_t first_seq = own.seq;
  int first_rank = ctx.topo.rank;
  for (int peer = 0; peer < ctx.topo.world; ++peer) {
    if (!takes_part(ctx, peer) || !has_reported(backend, ctx, peer)) continue;
    const FaultCell& cell = cells_of(backend.window(), ctx, peer).fault;
    if (cell.awaited >= 0 && cell.awaited < ctx.topo.world) awaited.add(cell.awaited);
    if (cell.seq < first_seq || (cell.seq == first_seq && peer < first_rank)) {
      first_seq = cell.seq;
      first_rank = peer;
      first_awaited = cell.awaited;
    }
  }
  for (int peer = 0; peer < ctx.topo.world; ++peer) {
    if (awaited.has(peer) && takes_part(ctx, peer) && !has_reported(backend, ctx, peer)) return peer;
  }
  return first_awaited;
}

std::string describe_fault(const Context& ctx, int culprit) {
  const Fault& fault = ctx.ledger->fault;
  const std::string call = fmt::format("{} (call {} on rank {})", name_of(fault.kind), fault.seq, ctx.topo.rank);
  const std::string counter = fmt::format("its {} counter: wanted {}, seen {}", what_of(fault.awaited), fault.wanted,
                                          fault.seen);
  const double seconds = static_cast<double>(ctx.timeout_ns) * 1e-9;
  const std::string origin =
      culprit == fault.peer || culprit == ctx.topo.rank
          ? ""
          : fmt::format("; the fault began with rank {}, which others waited for", culprit);
  switch (fault.code) {
    case FaultCode::timeout:
      return fmt::format("{}: rank {} did not come within {:g} s ({}){}", call, fault.peer, seconds, counter, origin);
    case FaultCode::mismatch: return fmt::format("{}: {}{}", call, describe_mismatch(ctx, fault), origin);
    case FaultCode::peer_fault:
      return fmt::format("{}: another rank left the call while this one waited for rank {} ({}); the fault began with rank {}",
                         call, fault.peer, counter, culprit);
    case FaultCode::peer_destroyed:
      return fmt::format("{}: rank {} has destroyed its buffer ({})", call, fault.peer, counter);
    case FaultCode::unreceived:
      return fmt::format("{}: the call before it in its lane (call {}) was not received", call, fault.seen);
    case FaultCode::interrupted:
      return fmt::format("{}: interrupted while it waited for rank {} ({})", call, fault.peer, counter);
    case FaultCode::none: break;
  }
  return call + ": no fault";
}

}  // namespace heddle
