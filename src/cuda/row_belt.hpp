// A worker's stages in block memory, by which rows pass from one place to another while no register holds them: the loads of
// a row run while the one before is handed on. At most one row has been begun and not handed on when another begins; what was
// handed on before that one has been read from its stage by then.
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "device/board.hpp"
#include "device/bulk.hpp"
#include "protocol/call.hpp"

namespace heddle {

inline constexpr int kBeltStages = 2;  // with three, fewer workers have room, and each waits as often
inline constexpr int64_t kBeltAlign = 128;

/// Memory of a block's belts: gates [workers][kBeltStages], then stages.
struct BeltShape {
  int64_t stage_bytes = 0;

  HEDDLE_HD static BeltShape of(int64_t row_bytes) { return {round_up(row_bytes, kBeltAlign)}; }
  HEDDLE_HD int64_t gate_bytes(int workers) const {
    return round_up(int64_t{workers} * kBeltStages * int64_t{sizeof(BulkGate)}, kBeltAlign);
  }
  HEDDLE_HD int64_t bytes(int workers) const {
    return gate_bytes(workers) + int64_t{workers} * kBeltStages * stage_bytes;
  }
  /// How many workers a block of so much memory has room for.
  HEDDLE_HD int workers_in(int64_t bytes) const {
    const int64_t each = kBeltStages * (stage_bytes + int64_t{sizeof(BulkGate)});
    return bytes < kBeltAlign ? 0 : static_cast<int>((bytes - kBeltAlign) / each);
  }
};

/// A row's place on the belt.
struct Seat {
  int stage = 0;
  uint32_t turn = 0;
};

/// A row that this rank asked its own GPU for is late: only a defect could do that. Apart, so that it takes no room among what
/// every row needs.
HEDDLE_HD HEDDLE_APART inline void claim_late_ride(const Call& call) {
  claim_fault(call.ctx, {.code = FaultCode::timeout, .awaited = Awaited::rows, .kind = call.shape.kind,
                         .peer = call.ctx.topo.rank, .seq = call.state->seq, .hash = call.shape.hash()});
}

template <class Coop, class Port>
class RowBelt {
 public:
  /// `memory` is the block's, aligned to kBeltAlign.
  HEDDLE_HD RowBelt(const Coop& coop, Port& port, const Call& call, std::byte* memory, const BeltShape& shape, int worker,
                    int workers)
      : coop_(coop), port_(port), call_(call), gates_(reinterpret_cast<BulkGate*>(memory) + worker * kBeltStages),
        stages_(memory + shape.gate_bytes(workers) + int64_t{worker} * kBeltStages * shape.stage_bytes),
        stage_bytes_(static_cast<int>(shape.stage_bytes)) {}

  /// Once a launch, by all lanes of the worker; then the block meets.
  HEDDLE_HD void open() const {
    if (coop_.lane() != 0) return;
    for (int stage = 0; stage < kBeltStages; ++stage) bulk::open_gate(gates_ + stage);
    bulk::fence_block();
  }

  HEDDLE_HD std::byte* at(const Seat& seat) const { return stages_ + seat.stage * stage_bytes_; }
  HEDDLE_HD BulkGate* gate(const Seat& seat) const { return gates_ + seat.stage; }

  /// Of the number-th row to begin, for who counts them; a belt knows one of two ways to number.
  HEDDLE_HD static Seat seat(uint32_t number) {
    return {static_cast<int>(number % kBeltStages), number / kBeltStages & 1};
  }
  /// For a row that begins; one lane expects it, once, and all loads of it go by the gate.
  HEDDLE_HD Seat next() {
    const Seat seat = take(stage_);
    stage_ = stage_ + 1 == kBeltStages ? 0 : stage_ + 1;
    return seat;
  }
  /// For a second load of the same row, after the first was waited for.
  HEDDLE_HD Seat again(const Seat& seat) { return take(seat.stage); }

  /// Until the row's loads are there: those of all lanes. `others`: the words of a later row are on their way, too.
  HEDDLE_HD void await(const Seat& seat, bool others) {
    if (others) bulk::wait_words_but_one();
    else bulk::wait_words();
    await_bulk(seat);
  }
  /// The same where no words were asked for.
  HEDDLE_HD void await_bulk(const Seat& seat) {
    bool here = bulk::is_open(gate(seat), seat.turn);
    uint64_t deadline = 0;  // from the first look on that found nothing
    for (bool is_late = false; !here && !is_late;) {
      const uint64_t now = port_.now();
      if (deadline == 0) deadline = now + call_.ctx.timeout_ns;
      is_late = now > deadline;
      here = bulk::is_open(gate(seat), seat.turn);  // what came while the lane was held up is not late
    }
    coop_.worker_sync();
    if (all_lanes(here)) return;
    is_sound_ = false;
    claim_late_ride(call_);
  }

  /// False once a row was late; then nobody may hear of what was handed on.
  HEDDLE_HD bool is_sound() const { return is_sound_; }

 private:
  HEDDLE_HD static bool all_lanes(bool here) {
#if HEDDLE_ON_DEVICE
    return __all_sync(0xFFFFFFFFu, here) != 0;
#else
    return here;  // bulk copies are there at once
#endif
  }

  HEDDLE_HD Seat take(int stage) {
    const uint32_t turn = turns_ >> stage & 1;
    turns_ ^= 1u << stage;
    return {stage, turn};
  }

  const Coop& coop_;
  Port& port_;
  const Call& call_;
  BulkGate* gates_;
  std::byte* stages_;
  int stage_bytes_;
  int stage_ = 0;
  uint32_t turns_ = 0;
  bool is_sound_ = true;
};

}  // namespace heddle
