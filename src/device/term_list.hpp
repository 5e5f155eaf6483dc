// The terms of one sum, gathered by a worker whose lanes then all read them. On a GPU they lie in shared memory: an array of
// each thread would be kilobytes of local memory, which the driver sets aside for every thread the device can hold.
#pragma once

#include "base/macros.hpp"
#include "device/rows.hpp"

namespace heddle {

template <class Coop, int kMost>
class TermList {
 public:
  /// By all lanes; the worker's earlier list of this size ends here.
  HEDDLE_HD explicit TermList(const Coop& coop) : coop_(coop) {
#if HEDDLE_ON_DEVICE
    __shared__ Term all[Coop::kMaxThreads / 32][kMost];
    terms_ = all[threadIdx.x / 32];
    coop.worker_sync();  // lanes may still read the earlier list
#endif
  }

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
      if (found.row != nullptr) terms_[count_++] = found;
    }
#endif
  }

  HEDDLE_HD void sum(const SumArgs& args) const {
    coop_.worker_sync();
    sum_rows(coop_, args, terms_, count_);
  }

 private:
  const Coop& coop_;
#if HEDDLE_ON_DEVICE
  Term* terms_;
#else
  Term terms_[kMost];
#endif
  int count_ = 0;
};

}  // namespace heddle
