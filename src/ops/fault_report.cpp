#include "ops/fault_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <vector>

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

/// Whom a rank waited for, or mismatched with, when it left its call.
struct Blame {
  int rank;
  int awaited;
  uint64_t seq;
};

std::vector<Blame> all_blames(Backend& backend, const Context& ctx) {
  const Fault& own = ctx.ledger->fault;
  std::vector<Blame> blames = {{ctx.topo.rank, own.peer, own.seq}};
  for (int peer = 0; peer < ctx.topo.world; ++peer) {
    if (!takes_part(ctx, peer) || !has_reported(backend, ctx, peer)) continue;
    const FaultCell& cell = cells_of(backend.window(), ctx, peer).fault;
    if (cell.awaited >= 0 && cell.awaited < ctx.topo.world) blames.push_back({peer, cell.awaited, cell.seq});
  }
  return blames;
}

}  // namespace

const char* name_of(Kind kind) { return kind == Kind::dispatch ? "dispatch" : "combine"; }

Verdict find_culprit(Backend& backend, const Context& ctx) {
  const Fault& own = ctx.ledger->fault;
  if (own.code == FaultCode::unreceived || own.code == FaultCode::peer_destroyed || own.code == FaultCode::interrupted) {
    return {.culprit = own.peer, .accuser = ctx.topo.rank};
  }
  const uint64_t deadline = backend.now() + ctx.timeout_ns;
  for (int attempt = 0; !all_reported(backend, ctx) && backend.now() < deadline; ++attempt) backend.relax(attempt);

  const std::vector<Blame> blames = all_blames(backend, ctx);
  adopt_mismatch(backend, ctx);
  // A rank that wrote nothing, the lowest first; else whom the earliest accuses. A rank awaits its own puts too: such a
  // wait, cut short by a peer's fault, accuses nobody.
  const auto is_silent = [&](const Blame& blame) {
    return takes_part(ctx, blame.awaited) && !has_reported(backend, ctx, blame.awaited);
  };
  const auto weight = [&](const Blame& blame) {
    const bool silent = is_silent(blame);
    return std::tuple(!silent, silent ? blame.awaited : 0, blame.awaited == blame.rank, blame.seq, blame.rank);
  };
  const Blame decisive = std::ranges::min(blames, {}, weight);
  return {.culprit = decisive.awaited, .accuser = decisive.rank};
}

std::string describe_fault(const Context& ctx, const Verdict& verdict) {
  const auto [culprit, accuser] = verdict;
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
      return fmt::format("{}: another rank left the call while this one waited for rank {} ({}); the fault began with rank {}{}",
                         call, fault.peer, counter, culprit,
                         accuser == ctx.topo.rank ? "" : fmt::format(", says rank {}", accuser));
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
