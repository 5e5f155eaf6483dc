// I14: rows go straight into outputs from the heap. That results are exact is shown with all others (Group::in_place); here,
// that rows really take that way, and only where the receiver offers.
#include "layout/window.hpp"
#include "world/cases.hpp"
#include "world/compare.hpp"
#include "world/hows.hpp"
#include "world/inputs.hpp"

namespace heddle::testing {
namespace {

Case case_of(Layout layout, Heap heap) {
  Case c;
  c.world = {.routing = Routing::uniform, .ranks = 3, .tokens = 12, .topk = 2, .experts = 6, .hidden = 32, .seed = 3};
  c.layout = layout;
  c.heap = heap;
  c.slots = 3;  // rows beside their payload would need several rounds
  return c;
}

/// Puts of rows that have come from `source`, of all dispatches so far.
uint64_t row_puts(const Rank& r, const Case& c, int source) {
  const Window window(c.world.ranks, settings_for(c).window_bytes);
  const auto& cells = *reinterpret_cast<const Cells*>(r.window() + window.cells(source));
  const auto& rows = cells.rows[static_cast<int>(Kind::dispatch)];
  return load_acquire(&rows[0]) + load_acquire(&rows[1]);
}

class InPlace : public InEveryCell {
 protected:
  void SetUp() override {
    InEveryCell::SetUp();
    if (GetParam().crew == Crewed::gpu) GTEST_SKIP() << "its window is not the host's to look into";
  }
};

// A row in place is two puts, one of the payload and one of what goes with it; a staged row is one.
TEST_P(InPlace, RowsTakeTheWayThatTheReceiverOffers) {
  for (const Layout layout : {Layout::token_major, Layout::expert_major, Layout::slab}) {
    for (const Heap heap : {Heap::ample, Heap::empty_once, Heap::one_row, Heap::nowhere}) {
      const Case c = case_of(layout, heap);
      const Meaning m = meaning_of(c);
      World(GetParam(), settings_for(c)).run([&](Rank& r) {
        const Inputs in(c, m, r.index());
        const Plan plan = in.plan(r.buffer());
        const bool direct = heap == Heap::ample || (heap != Heap::nowhere && r.index() != 0);
        for (uint64_t call = 1; call <= 3; ++call) {
          const Received received = r.buffer().dispatch(plan, in.dispatch_input(), in.dispatch_options());
          expect_received(received, m.received[r.index()], c, m, r.index());
          for (int source = 0; source < c.world.ranks; ++source) {
            const auto& offset = m.received[r.index()].recv_offset;
            const auto rows = static_cast<uint64_t>(offset[source + 1] - offset[source]);
            EXPECT_EQ(row_puts(r, c, source), call * rows * (direct ? 2 : 1)) << "from rank " << source;
          }
        }
      });
    }
  }
}

// A split call must not wait for its receivers, so it never uses offers.
TEST_P(InPlace, SplitCallsStage) {
  Case c = case_of(Layout::expert_major, Heap::ample);
  c.slots = 0;
  c.split_dispatch = true;
  const Meaning m = meaning_of(c);
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    play(r, c, m);
    const auto& offset = m.received[r.index()].recv_offset;
    EXPECT_EQ(row_puts(r, c, 0), static_cast<uint64_t>(offset[1]));
  });
}

// Masks by deadline and rows in place exclude one another: a late row could land in a result that was returned.
TEST_P(InPlace, BuffersThatMaskByDeadlineStage) {
  const Case c = case_of(Layout::token_major, Heap::ample);
  const Meaning m = meaning_of(c);
  WorldSettings settings = settings_for(c);
  settings.config.mask_late_peers = true;
  World(GetParam(), settings).run([&](Rank& r) {
    play(r, c, m);
    const auto& offset = m.received[r.index()].recv_offset;
    EXPECT_EQ(row_puts(r, c, 2), static_cast<uint64_t>(offset[3] - offset[2]));
  });
}

INSTANTIATE_TEST_SUITE_P(All, InPlace, ::testing::ValuesIn(all_hows()), cell_name);

}  // namespace
}  // namespace heddle::testing
