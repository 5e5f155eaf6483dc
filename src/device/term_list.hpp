// The terms of one sum, gathered by a worker whose lanes then all read them.
#pragma once

#include "base/macros.hpp"
#include "device/rows.hpp"

namespace heddle {

/// In memory that all lanes see.
template <class Coop>
class TermList {
 public:
  /// By all lanes.
  HEDDLE_HD TermList(const Coop& coop, Term* terms) : coop_(coop), terms_(terms) {}

  HEDDLE_HD int count() const { return count_; }

  /// By all lanes: adds term(k) of all k below `count`, in order, those without a row left out. A lane may be asked for any k.
  template <class TermOf>
  HEDDLE_HD void gather(int count, const TermOf& term) {
#if HEDDLE_ON_DEVICE
    for (int first = 0; first < count; first += 32) {
      const int k = first + coop_.lane();
      const Term found = k < count ? term(k) : Term{};
      const uint32_t all = __ballot_sync(0xFFFFFFFFu, found.row != nullptr);
      if (found.row != nullptr) terms_[count_ + __popc(all & ((1u << coop_.lane()) - 1))] = found;
      count_ += __popc(all);
    }
#else
    for (int k = 0; k < count; ++k) {
      const Term found = term(k);
      if (found.row != nullptr) add(found);
    }
#endif
  }

  /// By all lanes, which pass the same; the row may be null.
  HEDDLE_HD void add(const Term& term) {
    if (coop_.lane() == 0) terms_[count_] = term;
    ++count_;
  }

  HEDDLE_HD void sum(const SumArgs& args) const {
    coop_.worker_sync();
    sum_rows(coop_, args, terms_, count_);
  }

 private:
  const Coop& coop_;
  Term* terms_;
  int count_ = 0;
};

/// With memory of its own. On a GPU that is the block's: an array of each thread would be kilobytes of local memory, which the
/// driver sets aside for every thread the device can hold.
template <class Coop, int kMost>
class OwnTermList {
 public:
  /// By all lanes; the worker's earlier list of this size ends here.
  HEDDLE_HD explicit OwnTermList([[maybe_unused]] const Coop& coop) {
#if HEDDLE_ON_DEVICE
    __shared__ Term all[Coop::kMaxThreads / 32][kMost];
    terms_ = all[threadIdx.x / 32];
    coop.worker_sync();  // lanes may still read the earlier list
#endif
  }

#if HEDDLE_ON_DEVICE
  HEDDLE_HD Term* terms() { return terms_; }
#else
  HEDDLE_HD Term* terms() { return own_; }
#endif

 private:
#if HEDDLE_ON_DEVICE
  Term* terms_;
#else
  Term own_[kMost];
#endif
};

}  // namespace heddle
