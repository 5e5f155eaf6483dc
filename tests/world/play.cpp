#include "world/compare.hpp"
#include "world/inputs.hpp"

namespace heddle::testing {
namespace {

Received dispatch_once(Rank& r, const Case& c, const Inputs& inputs, const Plan& plan) {
  if (!c.split_dispatch) return r.buffer().dispatch(plan, inputs.dispatch_input(), inputs.dispatch_options());
  const auto split = r.buffer().dispatch_send(plan, inputs.dispatch_input(), inputs.dispatch_options());
  split.receive();
  return *split.result;
}

Combined combine_once(Rank& r, const Case& c, const Inputs& inputs, const Handle& handle) {
  if (!c.split_combine) return r.buffer().combine(handle, inputs.combine_input(), inputs.combine_options());
  const auto split = r.buffer().combine_send(handle, inputs.combine_input(), inputs.combine_options());
  split.receive();
  return *split.result;
}

}  // namespace

void play(Rank& r, const Case& c, const Meaning& m) {
  const Inputs inputs(c, m, r.index());
  const Plan plan = inputs.plan(r.buffer());
  expect_plan(plan, m.plans[r.index()]);
  Handle handle;
  for (int i = 0; i < c.repeats; ++i) {
    const bool again = i % 2 == 1 && !c.split_dispatch;
    const Received received =
        again ? r.buffer().dispatch(handle, inputs.dispatch_input(), inputs.dispatch_options())
              : dispatch_once(r, c, inputs, plan);
    expect_received(received, m.received[r.index()], c, m, r.index());
    handle = received.handle;
    expect_combined(combine_once(r, c, inputs, handle), m.combined[r.index()]);
  }
  if (r.heap() == nullptr) return;
  r.barrier();  // whoever still sends is found out here
  r.heap()->check_free_memory();
}

}  // namespace heddle::testing
