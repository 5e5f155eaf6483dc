#include "ops/fault_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace heddle {
namespace {

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

std::string describe_mismatch(int rank, const Fault& fault) {
  const auto peer_kind = static_cast<Kind>(fault.peer_kind);
  if (fault.kind != peer_kind) {
    return fmt::format("rank {} makes a {} where rank {} makes a {}: all ranks must issue the same calls in the same order",
                       fault.peer, name_of(peer_kind), rank, name_of(fault.kind));
  }
  if (fault.hash != fault.peer_hash) {
    return fmt::format("rank {}'s arguments differ from rank {}'s (hash {:016x}, here {:016x}): layout, hidden, dtype, topk, "
                       "experts, alignment, max_tokens, weights and split must be the same on all ranks",
                       fault.peer, rank, fault.peer_hash, fault.hash);
  }
  return fmt::format("rank {}'s header does not fit this call (its seq {}, here {}; or its handle is of another batch)",
                     fault.peer, fault.seen, fault.wanted);
}

/// Whom a rank waited for, or mismatched with, when it left its call.
struct Blame {
  int rank;
  int awaited;
  uint64_t seq;
};

struct Verdict {
  int culprit;
  int accuser;  // the rank whose fault cell names it
};

/// What all ranks wrote into their fault cells when they left the call.
class Inquest {
 public:
  Inquest(Backend& backend, const Context& ctx)
      : backend_(backend), ctx_(ctx), ledger_(backend.look(ctx)), own_(ledger_.fault), window_(backend.window()) {}

  const Fault& own() const { return own_; }

  Verdict hold() {
    if (own_.code == FaultCode::unreceived || own_.code == FaultCode::peer_destroyed ||
        own_.code == FaultCode::interrupted || own_.code == FaultCode::unready) {
      return {.culprit = own_.peer, .accuser = ctx_.topo.rank};
    }
    await_reports();
    const std::vector<Blame> blames = all_blames();
    adopt_mismatch();
    return decide(blames);
  }

 private:
  const Cells& cells(int peer) const { return cells_of(window_, ctx_, peer); }
  bool has_reported(int peer) const { return load_acquire(&cells(peer).faults) != 0; }
  bool takes_part(int peer) const { return peer != ctx_.topo.rank && ledger_.is_open(peer); }

  bool all_reported() const {
    for (int peer = 0; peer < ctx_.topo.world; ++peer) {
      if (takes_part(peer) && !has_reported(peer)) return false;
    }
    return true;
  }

  void await_reports() {
    const uint64_t deadline = backend_.now() + ctx_.timeout_ns;
    for (int attempt = 0; !all_reported() && backend_.now() < deadline; ++attempt) {
      backend_.relax(attempt);
      window_ = backend_.window();
    }
  }

  std::vector<Blame> all_blames() const {
    std::vector<Blame> blames = {{ctx_.topo.rank, own_.peer, own_.seq}};
    for (int peer = 0; peer < ctx_.topo.world; ++peer) {
      if (!takes_part(peer) || !has_reported(peer)) continue;
      const FaultCell& cell = cells(peer).fault;
      if (cell.awaited >= 0 && cell.awaited < ctx_.topo.world) blames.push_back({peer, cell.awaited, cell.seq});
    }
    return blames;
  }

  /// This rank left the call because a peer did. If that peer was in another call, or in the same with other arguments,
  /// then this is the reason, here too. A refused call has no arguments to compare.
  void adopt_mismatch() {
    const uint64_t refused = Shape{.kind = own_.kind}.hash();
    for (int peer = 0; peer < ctx_.topo.world && own_.code == FaultCode::peer_fault; ++peer) {
      if (!takes_part(peer) || !has_reported(peer)) continue;
      const FaultCell& cell = cells(peer).fault;
      const bool same_call = cell.kind == static_cast<uint32_t>(own_.kind) && cell.hash == own_.hash;
      if (cell.seq != own_.seq || same_call || own_.hash == refused || cell.hash == refused) continue;
      own_.code = FaultCode::mismatch;
      own_.peer = peer;
      own_.peer_kind = cell.kind;
      own_.peer_hash = cell.hash;
    }
  }

  /// A rank that wrote nothing, the lowest first; else whom the earliest accuses. A rank awaits its own puts too: such a
  /// wait, cut short by a peer's fault, accuses nobody.
  Verdict decide(const std::vector<Blame>& blames) const {
    const auto weight = [&](const Blame& blame) {
      const bool silent = takes_part(blame.awaited) && !has_reported(blame.awaited);
      return std::tuple(!silent, silent ? blame.awaited : 0, blame.awaited == blame.rank, blame.seq, blame.rank);
    };
    const Blame decisive = std::ranges::min(blames, {}, weight);
    return {.culprit = decisive.awaited, .accuser = decisive.rank};
  }

  Backend& backend_;
  const Context& ctx_;
  const Ledger& ledger_;
  Fault own_;
  const std::byte* window_;
};

std::string describe(const Context& ctx, const Fault& fault, const Verdict& verdict) {
  const auto [culprit, accuser] = verdict;
  const int rank = ctx.topo.rank;
  const std::string call = fmt::format("{} (call {} on rank {})", name_of(fault.kind), fault.seq, rank);
  const std::string counter = fmt::format("its {} counter: wanted {}, seen {}", what_of(fault.awaited), fault.wanted,
                                          fault.seen);
  const double seconds = static_cast<double>(ctx.timeout_ns) * 1e-9;
  const std::string origin =
      culprit == fault.peer || culprit == rank
          ? ""
          : fmt::format("; the fault began with rank {}, which others waited for", culprit);
  switch (fault.code) {
    case FaultCode::timeout:
      return fmt::format("{}: rank {} did not come within {:g} s ({}){}", call, fault.peer, seconds, counter, origin);
    case FaultCode::mismatch: return fmt::format("{}: {}{}", call, describe_mismatch(rank, fault), origin);
    case FaultCode::peer_fault:
      return fmt::format("{}: another rank left the call while this one waited for rank {} ({}); the fault began with rank {}{}",
                         call, fault.peer, counter, culprit, accuser == rank ? "" : fmt::format(", says rank {}", accuser));
    case FaultCode::peer_destroyed:
      return fmt::format("{}: rank {} has destroyed its buffer ({})", call, fault.peer, counter);
    case FaultCode::unreceived:
      return fmt::format("{}: the call before it in its lane (call {}) was not received", call, fault.seen);
    case FaultCode::interrupted:
      return fmt::format("{}: interrupted while it waited for rank {} ({})", call, fault.peer, counter);
    case FaultCode::unready:
      return fmt::format("combine on rank {}: its rows were not ready within {:g} s (signal {}: wanted {}, seen {})", rank,
                         seconds, fault.word, fault.wanted, fault.seen);
    case FaultCode::none: break;
  }
  return call + ": no fault";
}

}  // namespace

const char* name_of(Kind kind) { return kind == Kind::dispatch ? "dispatch" : "combine"; }

FaultStory tell_fault(Backend& backend, const Context& ctx) {
  Inquest inquest(backend, ctx);
  const Verdict verdict = inquest.hold();
  return {.code = inquest.own().code, .text = describe(ctx, inquest.own(), verdict)};
}

}  // namespace heddle
