// Rows that a kernel beside a combine still makes: the combine's rank waits for the signals by which it says that they are there.
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "protocol/context.hpp"

namespace heddle {

/// Word e * pitch + i shows `wanted` once rows [i * rows_each, (i + 1) * rows_each) of expert e are written, and are seen by
/// whoever acquires it; words past an expert's count say nothing. Without counts there is a word for all rows of an expert.
struct SignalView {
  const uint32_t* words = nullptr;
  const int32_t* counts = nullptr;  // [experts] rows; null: one word an expert
  int32_t experts = 0;
  int32_t pitch = 1;
  int32_t rows_each = 0;
  uint32_t wanted = 0;

  HEDDLE_HD bool is_needed(int expert, int i) const { return counts == nullptr || int64_t{i} * rows_each < counts[expert]; }
};

/// One lane's wait; false if the deadline passed, the host broke it off or the rank is at fault, which the ledger then says.
template <class Port>
HEDDLE_HD bool await_signal(Port& port, const Context& ctx, const SignalView& view, int word, uint64_t deadline) {
  const uint32_t* at = view.words + word;
  for (int attempt = 0; load_acquire(at) < view.wanted; ++attempt) {
    if (ctx.ledger->is_faulted()) return false;  // who makes the rows may have heard of it
    const bool interrupted = load_acquire(&ctx.ledger->interrupted) != 0;
    if (interrupted || port.now() > deadline) {
      claim_fault(ctx, {.code = interrupted ? FaultCode::interrupted : FaultCode::unready, .kind = Kind::combine,
                        .peer = ctx.topo.rank, .wanted = view.wanted, .seen = load_acquire(at), .word = word});
      return false;
    }
    port.relax(attempt);
  }
  return true;
}

/// All lanes share the words; none of them meets another. `lane` of `lanes`.
template <class Port>
HEDDLE_HD bool await_signals(Port& port, const Context& ctx, const SignalView& view, int lane, int lanes) {
  const uint64_t deadline = port.now() + ctx.timeout_ns;
  for (int word = lane; word < view.experts * view.pitch; word += lanes) {
    if (!view.is_needed(word / view.pitch, word % view.pitch)) continue;
    if (!await_signal(port, ctx, view, word, deadline)) return false;
  }
  return true;
}

}  // namespace heddle
