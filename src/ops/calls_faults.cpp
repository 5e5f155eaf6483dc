// What becomes of a buffer's calls: faults, masks, reset, the end.
#include "base/log.hpp"
#include "ops/calls.hpp"
#include "ops/fault_report.hpp"

namespace heddle {
namespace {

int first_of(const RankSet& ranks) {
  int rank = 0;
  while (rank < kMaxRanks && !ranks.has(rank)) ++rank;
  return rank;
}

ErrorCode error_of(FaultCode code) {
  switch (code) {
    case FaultCode::mismatch: return ErrorCode::mismatch;
    case FaultCode::peer_destroyed: return ErrorCode::destroyed;
    case FaultCode::interrupted: return ErrorCode::faulted;
    default: return ErrorCode::timeout;
  }
}

}  // namespace

void Calls::raise_fault() {
  ++metrics_.faults;
  quarantine_.seize();
  backend().publish_fault(ctx_);
  FaultStory story = tell_fault(backend(), ctx_);
  first_fault_ = std::move(story.text);
  throw Error(error_of(story.code), first_fault_);
}

void Calls::mask(int rank) {
  const std::lock_guard lock(mutex_);
  check_usable();
  HEDDLE_CHECK(rank >= 0 && rank < parts_.topo.world && rank != parts_.topo.rank,
               "mask: rank = {}, legal: 0 to {}, not the own rank {}", rank, parts_.topo.world - 1, parts_.topo.rank);
  if (backend().look(ctx_).is_open(rank)) backend().close_pair(ctx_, rank);
}

std::vector<int> Calls::masked() const {
  const std::lock_guard lock(mutex_);
  const Ledger& ledger = parts_.backend->look(ctx_);
  std::vector<int> ranks;
  for (int rank = 0; rank < parts_.topo.world; ++rank) {
    if (!ledger.is_open(rank)) ranks.push_back(rank);
  }
  return ranks;
}

void Calls::reset(const std::vector<int>& members) {
  const std::lock_guard lock(mutex_);
  if (destroyed_) check_usable();
  RankSet set;
  for (int rank : members) {
    HEDDLE_CHECK(rank >= 0 && rank < parts_.topo.world, "reset: members has {}, legal: 0 to {}", rank,
                 parts_.topo.world - 1);
    set.add(rank);
  }
  for (int rank = 0; members.empty() && rank < parts_.topo.world; ++rank) set.add(rank);
  HEDDLE_CHECK(set.has(parts_.topo.rank), "reset: members do not hold the own rank {}", parts_.topo.rank);
  drop_in_flight("the call was dropped by reset() before it was received");
  backend().drain();
  if (backend().is_faulted(ctx_)) quarantine_.seize();
  RankSet missing;
  if (!backend().reset(ctx_, set, missing)) {
    std::string names;
    for (int rank = 0; rank < parts_.topo.world; ++rank) {
      if (missing.has(rank)) names += fmt::format("{}{}", names.empty() ? "" : ", ", rank);
    }
    first_fault_ = fmt::format("reset: rank {} did not come within {:g} s; call reset() again, without the ranks that are gone",
                               names, static_cast<double>(ctx_.timeout_ns) * 1e-9);
    backend().claim_fault(ctx_, {.code = FaultCode::timeout, .awaited = Awaited::reset, .peer = first_of(missing)});
    throw Error(ErrorCode::timeout, first_fault_);
  }
  ++metrics_.resets;
  incarnation_ = backend().look(ctx_).incarnation;
  sent_ = {};
  first_fault_.clear();
  if (members.empty()) quarantine_.clear();
}

void Calls::destroy() {
  const std::lock_guard lock(mutex_);
  if (destroyed_) return;
  destroyed_ = true;
  drop_in_flight("the buffer was destroyed before the call was received");
  backend().drain();
  backend().announce_destroyed(ctx_);
  backend().drain();
}

/// What an owner that goes away can do: a GPU may be gone already, at the end of its process.
void Calls::destroy_quietly() noexcept {
  try {
    destroy();
  } catch (const Error& error) {
    log_warn("destroying a buffer: {}", error.what());
  }
}

}  // namespace heddle
