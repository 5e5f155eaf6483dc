"""Faults of the protocol, one a row: each takes away one wait, credit, order or bound. The text is found once in its file."""

from typing import NamedTuple


class Mutant(NamedTuple):
    invariant: str
    name: str
    file: str  # under src/
    find: str
    replace: str
    tsan: bool = False  # an order of memory, which only ThreadSanitizer sees


MUTANTS = [
    Mutant("I1", "rows go to their slots in the opposite order", "protocol/dispatch_rounds.hpp",
           "const int64_t slot_number = row.round * static_cast<int64_t>(range.count) + row.place;",
           "const int64_t slot_number = row.round * static_cast<int64_t>(range.count) + (rows_to(args, row.peer, row.round) - 1 - row.place);"),
    Mutant("I2", "rows are read when their header is there", "protocol/dispatch.hpp",
           "      await_rows(port_, call_, source, puts_until(source, round), deadline);",
           "      (void)deadline;"),
    Mutant("I2", "the header before is taken for this one", "protocol/call_header.hpp",
           ".wanted = state.headers_wanted, .deadline", ".wanted = state.headers_wanted - 1, .deadline"),
    Mutant("I3", "a token is summed before its last result", "protocol/combine.hpp",
           "if (coop_.lane() == 0) await_rows(port_, call_, owner, rows, deadline);",
           "if (coop_.lane() == 0) await_rows(port_, call_, owner, rows - 1, deadline);"),
    Mutant("I4", "both kinds take their lanes from one count", "protocol/call.hpp",
           "ledger.calls[kind]++ % kLanes", "ledger.calls[0]++ % kLanes"),
    Mutant("I4", "both kinds share the credits of a lane", "protocol/call.hpp",
           "state.credits_before[peer] = ledger.rounds_sent[kind][lane][peer];",
           "state.credits_before[peer] = ledger.rounds_sent[0][lane][peer];"),
    Mutant("I5", "a lane is used again without its credits", "protocol/call.hpp",
           "    await_credits(port, call, static_cast<int>(peer), 0, deadline);", "    (void)peer, (void)deadline;"),
    Mutant("I5", "a dispatch's next round waits for one credit less", "protocol/dispatch.hpp",
           "await_credits(port_, call_, to, round, deadline)", "await_credits(port_, call_, to, round - 1, deadline)"),
    Mutant("I5", "a combine's next round waits for one credit less", "protocol/combine.hpp",
           "await_credits(port_, call_, to, round, deadline)", "await_credits(port_, call_, to, round - 1, deadline)"),
    Mutant("I5", "the credit is given before the rows are read", "protocol/dispatch.hpp",
           """    for (int source = 0; source < topo_.world; ++source) place_round(source, round);
    coop_.sync();  // a credit says that all members have read
    deal_lanes(coop_, 0, topo_.world, [&](long source) {
      if (round < state_.rounds[source]) give_credit(port_, call_, static_cast<int>(source));
    });
""",
           """    deal_lanes(coop_, 0, topo_.world, [&](long source) {
      if (round < state_.rounds[source]) give_credit(port_, call_, static_cast<int>(source));
    });
    for (int source = 0; source < topo_.world; ++source) place_round(source, round);
"""),
    Mutant("I7", "a refuser frees the lane before all rows have landed", "protocol/call_rows.hpp",
           "await_rows(port, call, source, call.state->count[source], deadline);", "(void)deadline;"),
    Mutant("I7", "a refuser gives one credit for all rounds", "protocol/call_rows.hpp",
           "    for (int round = 1; round < call.state->rounds[source]; ++round) give_credit(port, call, source);\n", ""),
    Mutant("I7", "a refuser says that it takes part in offers", "protocol/call_header.hpp",
           "offers_rows(call.ctx, call.shape) && !call.refusal.is_set();", "offers_rows(call.ctx, call.shape);"),
    Mutant("I9", "a wait has no deadline", "protocol/await.hpp",
           "  if (port.now() > wait.deadline) return FaultCode::timeout;\n", ""),
    Mutant("I9", "who leaves a call says that it waited for itself", "protocol/context.hpp",
           ".awaited = fault.peer};", ".awaited = ctx.topo.rank};"),
    Mutant("I10", "a mask is not told to its peer", "protocol/context.hpp",
           "  port.add(peer, ctx.window.cells(ctx.topo.rank) + static_cast<int64_t>(offsetof(Cells, closed)), 1);\n",
           "  (void)port;\n"),
    Mutant("I10", "rows of a rank masked meanwhile stay", "protocol/dispatch.hpp",
           "    drop_masked_rows(coop_, port_.local(), a_);\n", ""),
    Mutant("I11", "cells are cleared before all have stopped", "protocol/reset.hpp",
           "      if (!meet(port, ctx, members, 2 * next, missing)) return false;\n", ""),
    Mutant("I11", "a rank goes on before all have cleared", "protocol/reset.hpp",
           "    if (!meet(port, ctx, members, 2 * next + 1, missing)) return false;\n", ""),
    Mutant("I11", "who is in its next reset takes a slow rank along", "protocol/reset.hpp",
           " && is_left_out(window, ctx, members)) continue;", ") continue;"),
    Mutant("I12", "the totals of a call are not kept", "protocol/call.hpp",
           "state.rows_before[source] + puts;", "state.rows_before[source];"),
    Mutant("I14", "a row in place is read when one of its two puts is there", "protocol/dispatch.hpp",
           "rows * (state_.direct_from[source] != 0 ? 2 : 1)", "rows"),
    Mutant("I14", "memory is offered that does not hold the rows", "protocol/offer.hpp",
           "needed <= args.out.rows && args.call.state->count[source] <= range_of(args.call, true).count;",
           "needed >= 0;"),
    Mutant("I14", "a direct pair still counts all its rounds", "protocol/offer.hpp",
           "  call.ctx.ledger->rounds_sent[static_cast<int>(Kind::dispatch)][state.lane][receiver] -= rounds_less;\n",
           "  (void)rounds_less;\n"),
    Mutant("verb", "an add does not release what was stored", "device/atomic.hpp",
           "fetch_add(n, std::memory_order_release)", "fetch_add(n, std::memory_order_relaxed)", tsan=True),
    Mutant("verb", "a look does not acquire what was stored", "device/atomic.hpp",
           "std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(word)).load(std::memory_order_acquire)",
           "std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(word)).load(std::memory_order_relaxed)", tsan=True),
]
