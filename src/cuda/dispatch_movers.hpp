// How a worker of the dispatch pump moves a row: begun, then handed on, to its receiver or to the output. Three ways:
//   DispatchLanes  the lanes carry the row in registers when it is handed on; for any row
//   DispatchBelt   bulk copies carry it through block memory, where a stage holds it as its slot does, staged
//   CastBelt       the same, and the lanes cast the row in block memory on its way out
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
  static constexpr bool kCastsOwn = false;   // what is in the batch is handed in as it is

  HEDDLE_HD DispatchLanes(const Coop& coop, Port& port, const DispatchArgs& args, const DispatchBoard<Port>* board, int, int)
      : coop_(coop), port_(port), a_(args), experts_(LocalExperts::of(args.call.ctx.topo)),
        expert_row_(board->near_rows(args)) {}

  HEDDLE_HD void open() {}
  HEDDLE_HD bool is_sound() const { return true; }
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

HEDDLE_HD inline int64_t batch_row_bytes(const Shape& shape) {
  if (shape.quantise == Quantise::none) return shape.payload_bytes;
  return quantised_hidden(shape.payload_bytes, shape.quantise) * static_cast<int64_t>(size_of(shape.dtype));
}

/// A stage holds a row as its slot does, or, in place, its payload and then the slot, which ends at a line of its own. A row that
/// is cast lies in the payload's place before, and what else the slot has lies behind it.
HEDDLE_HD inline BeltShape belt_of(const DispatchArgs& args) {
  const Shape& shape = args.call.shape;
  const int64_t staged = Slot::of(shape).stride - shape.payload_bytes, in_place = Slot::of(shape, true).stride;
  return BeltShape::of(batch_row_bytes(shape) + (staged < in_place ? in_place : staged));
}

/// Whether a row's scales may go to the output by bulk copies.
HEDDLE_HD inline bool scales_leave(const DispatchArgs& args) {
  const ScaleView& scales = args.out.scales;
  return is_bulk(4 * int64_t{args.call.shape.scale_words}) && scales.col_stride == 1 && is_bulk(4 * scales.row_stride) &&
         is_bulk(scales.words);
}

/// Whether rows may go by bulk copies, and their scales where they are not made on the way. For the host.
HEDDLE_HD inline bool can_ride(const DispatchArgs& args) {
  const Shape& shape = args.call.shape;
  const BatchView& batch = args.batch;
  const bool scales_ride = shape.scale_words == 0 || shape.quantise != Quantise::none ||
                           (batch.scale_col_stride == 1 && is_bulk(4 * batch.scale_row_stride) && is_bulk(batch.scales) &&
                            scales_leave(args));
  return shape.payload_bytes > 0 && is_bulk(shape.payload_bytes) && is_bulk(batch_row_bytes(shape)) && is_bulk(batch.x_stride) &&
         is_bulk(batch.x) && is_bulk(args.out.x) && scales_ride;
}

template <bool kCasts, class Coop, class Port>
class BeltMover {
 public:
  static constexpr bool kPostsLate = true;  // once the next one has been handed out, or after finish()
  static constexpr bool kCastsOwn = kCasts;

  HEDDLE_HD BeltMover(const Coop& coop, Port& port, const DispatchArgs& args, DispatchBoard<Port>* board, int worker, int workers)
      : coop_(coop), port_(port), a_(args), experts_(LocalExperts::of(args.call.ctx.topo)),
        expert_row_(board->near_rows(args)), slot_(Slot::of(args.call.shape)),
        scales_leave_(!kCasts || scales_leave(args)),
        belt_(coop, port, args.call, reinterpret_cast<std::byte*>(board + 1), belt_of(args), worker, workers) {}

  HEDDLE_HD void open() { belt_.open(); }
  HEDDLE_HD bool is_sound() const { return belt_.is_sound(); }

  HEDDLE_HD void begin_batch_row(Ride& ride) {
    ride.seat = next_seat();
    std::byte* at = slot_around(belt_.at(ride.seat));
    const BatchView& batch = a_.batch;
    const int64_t topk = a_.call.shape.topk;
    const int64_t first = ride.token * topk;
    if (coop_.lane() == 0) {
      const auto row_bytes = static_cast<uint32_t>(kCasts ? batch_row_bytes(a_.call.shape) : payload_bytes());
      const uint32_t given_scales = kCasts ? 0 : scale_bytes();
      bulk::expect(belt_.gate(ride.seat), row_bytes + given_scales);
      bulk::load(belt_.gate(ride.seat), belt_.at(ride.seat), batch.x + ride.token * batch.x_stride, row_bytes);
      if (given_scales > 0) {
        bulk::load(belt_.gate(ride.seat), at + slot_.scales, batch.scales + ride.token * batch.scale_row_stride, given_scales);
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
    belt_.await(ride.seat, others);
    if constexpr (kCasts) cast(ride.seat);
    bulk::fence_block();
    coop_.worker_sync();
    if (coop_.lane() != 0) return;
    const std::byte* at = belt_.at(ride.seat);
    auto stride = static_cast<uint32_t>(carve.range.stride);
    Target slot{.peer = ride.peer, .offset = base + carve.range.slot(ride.place)};
    if (ride.direct || kCasts) {
      const Target target = ride.direct ? direct_target(port_, a_, ride.peer, ride.number, ride.token) : slot;
      bulk::store(port_.stage(target, payload_bytes()), at, payload_bytes());
      at = slot_around(at) + payload_bytes();
    }
    if (kCasts && !ride.direct) {
      slot.offset += payload_bytes();
      stride -= payload_bytes();
    }
    bulk::store(port_.stage(slot, stride), at, stride);
    bulk::commit();
    bulk::wait_stores_but_one();
  }

  HEDDLE_HD void hand_in(const Ride& ride, const std::byte*, const Carve&, bool others) {
    belt_.await(ride.seat, others);
    const std::byte* slot = belt_.at(ride.seat);
    if (kCasts && ride.token >= 0) {
      cast(ride.seat);
      bulk::fence_block();
      coop_.worker_sync();
      slot = slot_around(slot);
    }
    const ArrivedRow row = ArrivedRow::in_slot(slot, slot_, ride.direct);
    const RowReader reader{
        .args = a_, .experts = experts_, .source = ride.peer, .row = row, .expert_row = expert_row_};
    if (ride.direct && is_grouped(a_.call.shape)) fetch(ride, reader);
    const std::byte* at = belt_.at(ride.seat);
    reader.place_by_lanes(coop_, ride.number, [&](int64_t to, int k) {
      if (!ride.direct || !reader.is_first_hit(k)) bulk::store(a_.out.x + to * payload_bytes(), at, payload_bytes());
      if (scale_bytes() > 0) place_scales(a_.out.scales.row(to), slot + slot_.scales);
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
    bulk::fence_block();  // what the lanes did to it comes before the loads of this one
    coop_.worker_sync();
    return belt_.next();
  }

  HEDDLE_HD uint32_t payload_bytes() const { return static_cast<uint32_t>(a_.call.shape.payload_bytes); }
  HEDDLE_HD uint32_t scale_bytes() const { return 4 * static_cast<uint32_t>(a_.call.shape.scale_words); }
  HEDDLE_HD static int32_t* word(std::byte* at, int64_t offset) { return reinterpret_cast<int32_t*>(at + offset); }

  /// Where a slot would begin whose payload is in front of the stage's rest: behind a row that is cast there is room for more.
  HEDDLE_HD std::byte* slot_around(const std::byte* stage) const {
    const int64_t more = kCasts ? batch_row_bytes(a_.call.shape) - payload_bytes() : 0;
    return const_cast<std::byte*>(stage) + more;
  }

  /// To where the row lies: each step ends before the next one's channels begin.
  HEDDLE_HD void cast(const Seat& seat) const {
    const Shape& shape = a_.call.shape;
    std::byte* at = belt_.at(seat);
    quantise_row(coop_, QuantiseArgs{.x = at, .x_dtype = shape.dtype,
                                     .hidden = quantised_hidden(shape.payload_bytes, shape.quantise), .mode = shape.quantise,
                                     .q = reinterpret_cast<uint8_t*>(at), .scales = slot_around(at) + slot_.scales,
                                     .global_scale = a_.batch.global_scale});
  }

  /// By one lane. Those that were cast may be of any number, and of any layout.
  HEDDLE_HD void place_scales(uint32_t* to, const std::byte* from) const {
    const int alone = scales_leave_ ? 0 : a_.call.shape.scale_words;
    for (int i = 0; i < alone; ++i) to[i * a_.out.scales.col_stride] = reinterpret_cast<const uint32_t*>(from)[i];
    if (alone == 0) bulk::store(to, from, scale_bytes());
  }

  /// A row in place lies at its first hit's row; the others need it here.
  HEDDLE_HD void fetch(const Ride& ride, const RowReader& reader) {
    const Seat seat = belt_.again(ride.seat);
    reader.find_first_hit(coop_, [&](int64_t row) {
      bulk::fence_device();  // not lane 0, which has made one
      bulk::expect(belt_.gate(seat), payload_bytes());
      bulk::load(belt_.gate(seat), belt_.at(seat), a_.out.x + row * payload_bytes(), payload_bytes());
    });
    belt_.await(seat, true);
  }

  const Coop& coop_;
  Port& port_;
  const DispatchArgs& a_;
  LocalExperts experts_;
  const int32_t* expert_row_;
  Slot slot_;
  bool scales_leave_;
  RowBelt<Coop, Port> belt_;
};

template <class Coop, class Port>
using DispatchBelt = BeltMover<false, Coop, Port>;
template <class Coop, class Port>
using CastBelt = BeltMover<true, Coop, Port>;

}  // namespace heddle
