// Sums whose rows come to block memory by bulk copies, a part of all of them at a time: a stage holds the same columns of each
// row. Two stages, so that the rows of the next part, or of the next sum, come while the lanes add those of this one.
#pragma once

#include <cstdint>

#include "cuda/row_belt.hpp"
#include "device/staged_sum.hpp"
#include "device/term_list.hpp"
#include "protocol/pieces.hpp"

namespace heddle {

inline constexpr int kMostBiases = 2;
inline constexpr int64_t kSumStage = 8192;  // bytes

/// A sum. Its rows: biases, then those of ranks in order, this rank's own hits together.
struct SumRide {
  std::byte* out = nullptr;
  int64_t tag = 0;  // of its first piece
  int peer = -1;    // who is told of each piece; -1: nobody
  int rows = 0;
  int come = 0;  // rows that are staged; others are zeros
  int biases = 0;
  int own = -1;      // the first of the hits that are summed and rounded first, as another rank's are
  int own_end = -1;
  int part = 0;  // bytes of each row that a stage takes at once

  /// Whole turns of a warp, if there is room.
  HEDDLE_HD static int part_of(int rows) {
    constexpr int kTurn = 32 * 16;
    const int most = static_cast<int>(kSumStage) / (rows > 0 ? rows : 1);
    return most >= kTurn ? most / kTurn * kTurn : most / 16 * 16;
  }
};

/// A worker's, in block memory: what is not in registers would be in local memory, which is as slow as the GPU's wherever a
/// publisher's releases empty the cache.
struct SumLists {
  struct {
    SumRide ride;
    Term rows[kMostStagedRows];
  } jobs[2];  // the sum under way, and the next
};

/// Memory of a block: the lists of its workers, then their belts.
struct SumShape {
  HEDDLE_HD static BeltShape belt() { return BeltShape::of(kSumStage); }
  HEDDLE_HD static int64_t list_bytes(int workers) {
    return round_up(int64_t{workers} * static_cast<int64_t>(sizeof(SumLists)), kBeltAlign);
  }
  HEDDLE_HD static int64_t bytes(int workers) { return list_bytes(workers) + belt().bytes(workers); }
  /// How many workers a block of so much memory has room for.
  HEDDLE_HD static int workers_in(int64_t bytes) {
    const auto each = static_cast<int64_t>(sizeof(SumLists)) + kBeltStages * (kSumStage + int64_t{sizeof(BulkGate)});
    return bytes < 2 * kBeltAlign ? 0 : static_cast<int>((bytes - 2 * kBeltAlign) / each);
  }
};

template <class Coop, class Port>
class SumBelt {
 public:
  HEDDLE_HD SumBelt(const Coop& coop, Port& port, const Call& call, std::byte* memory, int64_t row_bytes, int worker, int workers)
      : coop_(coop), lists_(reinterpret_cast<SumLists*>(memory) + worker), row_bytes_(static_cast<int>(row_bytes)),
        belt_(coop, port, call, memory + SumShape::list_bytes(workers), SumShape::belt(), worker, workers) {}

  HEDDLE_HD void open() { belt_.open(); }
  HEDDLE_HD bool is_sound() const { return belt_.is_sound(); }

  /// The list of the next ride's rows.
  HEDDLE_HD Term* next_rows() const { return lists_->jobs[next_].rows; }

  /// By all lanes, when the list is filled. The ride starts when the belt advances.
  HEDDLE_HD void note(SumRide ride) {
    ride.part = SumRide::part_of(ride.rows);
    coop_.worker_sync();  // a lane may still ask who is told of the sum before, whose place this one takes
    if (coop_.lane() == 0) lists_->jobs[next_].ride = ride;
    coop_.worker_sync();
  }

  /// Does the ride under way, if there is one, and then starts the next, if it has been noted. `post(peer, tag)`.
  template <class Post>
  HEDDLE_HD void advance(bool has_next, const Pieces& pieces, const Post& post) {
    if (has_begun_) run(has_next, pieces, post);
    has_begun_ = has_next;
    if (!has_next) return;
    if (!asks_next_) asked_ = 0;
    asks_next_ = false;
    next_ ^= 1;
    fill(false);
  }

 private:
  template <class Post>
  HEDDLE_HD void run(bool has_next, const Pieces& pieces, const Post& post) {
    const SumRide& ride = lists_->jobs[next_ ^ 1].ride;
    const int part = ride.part;
    int posted = 0;
    HEDDLE_ROLLED
    for (int done = 0; done < row_bytes_;) {
      fill(has_next);
      const int bytes = row_bytes_ - done < part ? row_bytes_ - done : part;
      sum(ride, done, bytes);
      done += bytes;
      HEDDLE_ROLLED
      for (; ride.peer >= 0 && is_done(pieces, posted, done); ++posted) post(ride.peer, ride.tag + posted);
    }
  }

  HEDDLE_HD bool is_done(const Pieces& pieces, int piece, int done) const {
    if (piece >= pieces.parts) return false;
    return done == row_bytes_ || (piece + 1) * static_cast<int>(pieces.part_bytes) <= done;
  }

  HEDDLE_HD void fill(bool has_next) {
    HEDDLE_ROLLED
    while (asked_parts_ - summed_parts_ < static_cast<uint32_t>(kBeltStages)) {
      if (asked_ == row_bytes_) {
        if (asks_next_ || !has_next) return;
        asks_next_ = true;
        asked_ = 0;
      }
      ask();
    }
  }

  HEDDLE_HD void ask() {
    const auto& job = lists_->jobs[asks_next_ ? next_ : next_ ^ 1];
    const int rows = job.ride.rows, part = job.ride.part;
    const int bytes = row_bytes_ - asked_ < part ? row_bytes_ - asked_ : part;
    const Seat seat = belt_.seat(asked_parts_++);
    if (coop_.lane() == 0) bulk::expect(belt_.gate(seat), static_cast<uint32_t>(job.ride.come * bytes));
    HEDDLE_ROLLED
    for (int row = coop_.lane(); row < rows; row += coop_.lanes()) {
      const auto* from = static_cast<const std::byte*>(job.rows[row].row);
      if (from == nullptr) continue;
      bulk::load(belt_.gate(seat), belt_.at(seat) + row * part, from + asked_, static_cast<uint32_t>(bytes));
    }
    asked_ += bytes;
  }

  /// Columns of the oldest stage.
  HEDDLE_HD void sum(const SumRide& ride, int from, int bytes) {
    const Seat seat = belt_.seat(summed_parts_++);
    belt_.await_bulk(seat);
    sum_staged(coop_, {.out = ride.out + from, .at = belt_.at(seat), .stride = ride.part, .columns = bytes / 2, .rows = ride.rows,
                       .biases = ride.biases, .own = ride.own, .own_end = ride.own_end, .terms = lists_->jobs[next_ ^ 1].rows});
    coop_.worker_sync();
  }

  const Coop& coop_;
  SumLists* lists_;
  int row_bytes_;
  int next_ = 0;  // of the two jobs
  bool has_begun_ = false;
  bool asks_next_ = false;  // for the next ride's parts; else for those of the one under way
  int asked_ = 0;           // bytes of each of its rows
  uint32_t asked_parts_ = 0;
  uint32_t summed_parts_ = 0;
  RowBelt<Coop, Port> belt_;
};

}  // namespace heddle
