// How a worker of the dispatch pump moves a row: begun, then handed on, to its receiver or to the output. Two ways:
//   DispatchLanes  the lanes carry the row in registers when it is handed on; for any row
//   DispatchBelt   bulk copies carry it through block memory, where a stage holds it as its slot does, staged
#pragma once

#include <cstdint>

#include "cuda/pump.hpp"
#include "cuda/row_belt.hpp"
#include "protocol/dispatch.hpp"

namespace heddle {

/// In the memory of a block; the belts lie behind it.
template <class Port>
struct alignas(kBeltAlign) DispatchBoard {
  static constexpr int kNearRows = 1024;

  PumpBoard pump;
  NearArgs<DispatchArgs, Port> near;
  Carve carves[2];  // staged, in place
  int32_t expert_row[kNearRows];

  /// The route's table of first rows, if it fits here; null: it does not, or there is none.
  HEDDLE_HD static int num_near_rows(const DispatchArgs& args) {
    const Topology& topo = args.call.ctx.topo;
    const int rows = is_grouped(args.call.shape) ? topo.num_local(topo.rank) * topo.world : 0;
    return rows <= kNearRows ? rows : 0;
  }
  HEDDLE_HD const int32_t* near_rows(const DispatchArgs& args) const {
    return num_near_rows(args) > 0 ? expert_row : nullptr;
  }
};

/// A row that has begun.
struct Ride {
  Seat seat;
  int peer = 0;             // its receiver, or its source
  uint32_t place = 0;       // in the round
  int64_t number = 0;       // on its way out: of the pair's slots; in: of all received rows
  int32_t token = -1;       // of this rank's batch; -1: the row lies in a slot
  bool direct = false;
};

template <class Coop, class Port>
class DispatchLanes {
 public:
  static constexpr bool kPostsLate = false;  // what was handed out may be announced at once

  HEDDLE_HD DispatchLanes(const Coop& coop, Port& port, const DispatchArgs& args, const DispatchBoard<Port>* board, int, int)
      : coop_(coop), port_(port), a_(args), experts_(LocalExperts::of(args.call.ctx.topo)),
        expert_row_(board->near_rows(args)) {}

  HEDDLE_HD void open() {}
  HEDDLE_HD void begin_batch_row(Ride&) {}
  HEDDLE_HD void begin_slot(Ride&, const std::byte*, const Carve&) {}

  HEDDLE_HD void hand_out(const Ride& ride, const Carve& carve, int64_t base, bool) {
    store_row(coop_, port_, a_, carve,
              {.peer = ride.peer,
               .base = base,
               .place = ride.place,
               .slot_number = ride.number,
               .token = ride.token,
               .direct = ride.direct});
  }

  HEDDLE_HD void hand_in(const Ride& ride, const std::byte* slot, const Carve& carve, bool) {
    const ArrivedRow row = ride.token >= 0 ? ArrivedRow::in_batch(a_, ride.token)
                                           : ArrivedRow::in_slot(slot, carve.slot, ride.direct);
    RowReader{.args = a_, .experts = experts_, .source = ride.peer, .row = row, .expert_row = expert_row_}.place(coop_, ride.number);
  }

  HEDDLE_HD void finish() {}

 private:
  const Coop& coop_;
  Port& port_;
  const DispatchArgs& a_;
  LocalExperts experts_;
  const int32_t* expert_row_;
};

/// A stage holds a row as its slot does, or, in place, its payload and then the slot, which ends at a line of its own.
HEDDLE_HD inline BeltShape belt_of(const DispatchArgs& args) {
  const Shape& shape = args.call.shape;
  const int64_t staged = Slot::of(shape).stride, in_place = shape.payload_bytes + Slot::of(shape, true).stride;
  return BeltShape::of(staged < in_place ? in_place : staged);
}

/// Whether rows and their scales may go by bulk copies. For the host.
HEDDLE_HD inline bool can_ride(const DispatchArgs& args) {
  const auto is_whole = [](int64_t bytes) { return bytes % 16 == 0; };
  const auto is_aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  const Shape& shape = args.call.shape;
  const BatchView& batch = args.batch;
  const ScaleView& scales = args.out.scales;
  const bool scales_ride = shape.scale_words == 0 ||
                           (is_whole(4 * int64_t{shape.scale_words}) && batch.scale_col_stride == 1 &&
                            is_whole(4 * batch.scale_row_stride) && is_aligned(batch.scales) && scales.col_stride == 1 &&
                            is_whole(4 * scales.row_stride) && is_aligned(scales.words));
  return shape.quantise == Quantise::none && shape.payload_bytes > 0 && is_whole(shape.payload_bytes) &&
         is_whole(batch.x_stride) && is_aligned(batch.x) && is_aligned(args.out.x) && scales_ride;
}

/// A row that this rank asked its own GPU for is late: only a defect could do that. Apart, so that it takes no room among what
/// every row needs.
HEDDLE_HD HEDDLE_APART inline void claim_late_ride(const Call& call) {
  claim_fault(call.ctx, {.code = FaultCode::timeout, .awaited = Awaited::rows, .kind = Kind::dispatch,
                         .peer = call.ctx.topo.rank, .seq = call.state->seq, .hash = call.shape.hash()});
}

template <class Coop, class Port>
class DispatchBelt {
 public:
  static constexpr bool kPostsLate = true;  // once the next one has been handed out, or after finish()

  HEDDLE_HD DispatchBelt(const Coop& coop, Port& port, const DispatchArgs& args, DispatchBoard<Port>* board, int worker,
                         int workers)
      : coop_(coop), port_(port), a_(args), experts_(LocalExperts::of(args.call.ctx.topo)),
        expert_row_(board->near_rows(args)), slot_(Slot::of(args.call.shape)),
        belt_(coop, reinterpret_cast<std::byte*>(board + 1), belt_of(args), worker, workers) {}

  HEDDLE_HD void open() { belt_.open(); }

  HEDDLE_HD void begin_batch_row(Ride& ride) {
    ride.seat = next_seat();
    std::byte* at = belt_.at(ride.seat);
    const BatchView& batch = a_.batch;
    const int64_t topk = a_.call.shape.topk;
    const int64_t first = ride.token * topk;
    if (coop_.lane() == 0) {
      bulk::expect(belt_.gate(ride.seat), payload_bytes() + scale_bytes());
      bulk::load(belt_.gate(ride.seat), at, batch.x + ride.token * batch.x_stride, payload_bytes());
      if (scale_bytes() > 0) {
        bulk::load(belt_.gate(ride.seat), at + slot_.scales, batch.scales + ride.token * batch.scale_row_stride,
                   scale_bytes());
      }
      *word(at, slot_.token) = ride.token;
    }
    for (int64_t k = coop_.lane(); k < topk; k += coop_.lanes()) {
      bulk::copy_word(word(at, slot_.ids) + k, a_.plan.ids + first + k);
      bulk::copy_word(word(at, slot_.ordinals) + k, a_.plan.ordinals + first + k);
      if (batch.weights == nullptr) word(at, slot_.weights)[k] = 0;
      else bulk::copy_word(word(at, slot_.weights) + k, batch.weights + first + k);
    }
    bulk::commit_words();
  }

  HEDDLE_HD void begin_slot(Ride& ride, const std::byte* slot, const Carve& carve) {
    ride.seat = next_seat();
    if (coop_.lane() == 0) {
      std::byte* at = belt_.at(ride.seat);
      const auto bytes = static_cast<uint32_t>(carve.range.stride);
      bulk::fence_device();  // after the wait for the row
      bulk::expect(belt_.gate(ride.seat), bytes);
      bulk::load(belt_.gate(ride.seat), ride.direct ? at + payload_bytes() : at, slot, bytes);
    }
    bulk::commit_words();
  }

  /// `others`: a later row has begun.
  HEDDLE_HD void hand_out(const Ride& ride, const Carve& carve, int64_t base, bool others) {
    wait(ride.seat, others);
    bulk::fence_block();
    coop_.worker_sync();
    if (coop_.lane() != 0) return;
    const std::byte* at = belt_.at(ride.seat);
    const auto stride = static_cast<uint32_t>(carve.range.stride);
    const Target slot{.peer = ride.peer, .offset = base + carve.range.slot(ride.place)};
    if (ride.direct) {
      const Target target = direct_target(port_, a_, ride.peer, ride.number, ride.token);
      bulk::store(port_.stage(target, payload_bytes()), at, payload_bytes());
      at += payload_bytes();
    }
    bulk::store(port_.stage(slot, stride), at, stride);
    bulk::commit();
    bulk::wait_stores_but_one();
  }

  HEDDLE_HD void hand_in(const Ride& ride, const std::byte*, const Carve&, bool others) {
    wait(ride.seat, others);
    const ArrivedRow row = ArrivedRow::in_slot(belt_.at(ride.seat), slot_, ride.direct);
    const RowReader reader{
        .args = a_, .experts = experts_, .source = ride.peer, .row = row, .expert_row = expert_row_};
    if (ride.direct && is_grouped(a_.call.shape)) fetch(ride, reader);
    const std::byte* at = belt_.at(ride.seat);
    reader.place_by_lanes(coop_, ride.number, [&](int64_t to, int k) {
      if (!ride.direct || !reader.is_first_hit(k)) bulk::store(a_.out.x + to * payload_bytes(), at, payload_bytes());
      if (scale_bytes() > 0) bulk::store(a_.out.scales.row(to), at + slot_.scales, scale_bytes());
    });
    bulk::commit();
  }

  /// All that was handed on has been stored.
  HEDDLE_HD void finish() {
    bulk::wait_stores();
    coop_.worker_sync();
  }

 private:
  HEDDLE_HD Seat next_seat() {
    bulk::wait_reads();   // of the row before the one that has begun
    coop_.worker_sync();  // by all lanes
    return belt_.next();
  }

  HEDDLE_HD uint32_t payload_bytes() const { return static_cast<uint32_t>(a_.call.shape.payload_bytes); }
  HEDDLE_HD uint32_t scale_bytes() const { return 4 * static_cast<uint32_t>(a_.call.shape.scale_words); }
  HEDDLE_HD static int32_t* word(std::byte* at, int64_t offset) { return reinterpret_cast<int32_t*>(at + offset); }

  /// A row in place lies at its first hit's row; the others need it here.
  HEDDLE_HD void fetch(const Ride& ride, const RowReader& reader) {
    const Seat seat = belt_.again(ride.seat);
    reader.find_first_hit(coop_, [&](int64_t row) {
      bulk::fence_device();  // not lane 0, which has made one
      bulk::expect(belt_.gate(seat), payload_bytes());
      bulk::load(belt_.gate(seat), belt_.at(seat), a_.out.x + row * payload_bytes(), payload_bytes());
    });
    wait(seat, true);
  }

  HEDDLE_HD void wait(const Seat& seat, bool others) const {
    uint64_t deadline = 0;  // from the first look on that found nothing
    const auto is_late = [&] {
      if (deadline == 0) deadline = port_.now() + a_.call.ctx.timeout_ns;
      return port_.now() > deadline;
    };
    if (!belt_.wait(seat, others, is_late)) claim_late_ride(a_.call);
  }

  const Coop& coop_;
  Port& port_;
  const DispatchArgs& a_;
  LocalExperts experts_;
  const int32_t* expert_row_;
  Slot slot_;
  RowBelt<Coop> belt_;
};

}  // namespace heddle
