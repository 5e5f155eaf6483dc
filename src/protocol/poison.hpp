// What a call that ended in a fault leaves where nobody is told (I9): outputs that cannot be taken for results. Every element
// type's all-ones pattern is NaN.
#pragma once

#include <cstdint>

#include "device/copy.hpp"
#include "protocol/combine_args.hpp"
#include "protocol/dispatch_args.hpp"

namespace heddle {

template <class Coop>
HEDDLE_HD void poison_dispatch(const Coop& coop, const DispatchArgs& args) {
  const OutputView& out = args.out;
  const Topology& topo = args.call.ctx.topo;
  const int64_t topk = args.call.shape.topk;
  const auto bytes = static_cast<size_t>(args.call.shape.payload_bytes);
  const int local = topo.num_local(topo.rank);
  deal_lanes(coop, 0, local, [&](long expert) {
    if (out.counts != nullptr) out.counts[expert] = 0;
    if (out.expert_offsets != nullptr) out.expert_offsets[expert + 1] = 0;
  });
  deal_lanes(coop, 0, topo.world, [&](long rank) { args.route.recv_offset[rank + 1] = 0; });
  deal(coop, 0, out.rows, [&](long row) {
    fill_bytes(coop, out.x + row * args.call.shape.payload_bytes, 0xFF, bytes);
    for (int64_t k = coop.lane(); k < topk; k += coop.lanes()) {
      out.place_id(row * topk + k, -1);
      if (out.weights != nullptr) out.weights[row * topk + k] = 0.0f;
    }
    if (coop.lane() != 0) return;
    if (out.row_weights != nullptr) out.row_weights[row] = 0.0f;
    if (out.row_source != nullptr) out.row_source[row] = -1;
    if (out.row_token != nullptr) out.row_token[row] = -1;
  });
}

/// After a fault, behind poison_dispatch(): who waits for experts finds it. All members.
template <class Coop>
HEDDLE_HD void give_up_experts(const Coop& coop, const DispatchArgs& args) {
  if (!args.out.ready.is_set()) return;
  coop.sync();
  const Topology& topo = args.call.ctx.topo;
  give_up_ready(coop, args.out.ready, topo.num_local(topo.rank));
}

template <class Coop>
HEDDLE_HD void poison_combine(const Coop& coop, const CombineArgs& args) {
  const auto bytes = static_cast<size_t>(args.hidden) * size_of(args.call.shape.dtype);
  const int64_t topk = args.call.shape.topk;
  deal(coop, 0, args.plan.tokens, [&](long token) {
    fill_bytes(coop, args.out.x + token * args.out.x_stride, 0xFF, bytes);
    if (args.out.weights == nullptr) return;
    for (int64_t k = coop.lane(); k < topk; k += coop.lanes()) args.out.weights[token * topk + k] = float_of(kFloatNan);
  });
}

}  // namespace heddle
