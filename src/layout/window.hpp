// Every byte of a rank's window. Offsets only; see memory/ for pointers.
//   control  one Cells per source: each cell has that source as its only remote writer
//   data     [kind][lane][source], a fixed byte range each, whatever the shapes: head (header, tables), then slots; behind
//            each range its tags, and if the buffer has them its self-announcing words: nothing else ever overwrites those
#pragma once

#include <cstddef>
#include <cstdint>

#include "layout/carver.hpp"
#include "layout/header.hpp"
#include "layout/shape.hpp"
#include "layout/slot.hpp"

namespace heddle {

/// What one source writes at this rank. Counters only grow; all but `reset` are cleared in reset().
struct alignas(kCellAlign) Cells {
  uint64_t headers[kKinds][kLanes];  // headers that arrived from the source
  uint64_t rows[kKinds][kLanes];     // rows that arrived from the source
  uint64_t credits[kKinds][kLanes];  // rounds of mine that the source has read
  uint64_t offers[kLanes];           // offers that arrived from the source, its rows' receiver
  uint64_t faults;                   // 1 once `fault` is valid
  uint64_t closed;                   // > 0: the source has masked me
  uint64_t destroyed;                // > 0: the source has destroyed its buffer
  uint64_t reset;                    // 2 x incarnation + phase of the source (reset.hpp); never cleared
  FaultCell fault;
  Offer offer[kLanes];
};

/// Bytes of a tag for each KiB of a range.
HEDDLE_HD constexpr int64_t tag_bytes_of(int64_t range_and_tags) {
  constexpr int64_t kBytesPerTag = 1024;
  const int64_t tags = range_and_tags / kBytesPerTag + 1;
  return (tags * int64_t{sizeof(uint64_t)} + kCellAlign - 1) / kCellAlign * kCellAlign;
}

class Window {
 public:
  constexpr Window() = default;
  /// `words`: a quarter of each pitch is for self-announcing words (layout/words.hpp), if it is worth it.
  HEDDLE_HD constexpr Window(int ranks, int64_t bytes, bool words = false) : ranks_(ranks) {
    Carver carver;
    carver.take(int64_t{sizeof(Cells)} * ranks);
    data_ = carver.take(0);
    pitch_ = (bytes - data_) / (int64_t{kKinds} * kLanes * ranks) / kCellAlign * kCellAlign;
    words_ = words ? words_of(pitch_) : 0;
    tags_ = tag_bytes_of(pitch_ - words_);
    range_ = pitch_ - words_ - tags_;
  }

  HEDDLE_HD constexpr int64_t cells(int source) const { return int64_t{sizeof(Cells)} * source; }
  HEDDLE_HD constexpr int64_t range_bytes() const { return range_; }
  HEDDLE_HD constexpr int64_t range(Kind kind, int lane, int source) const {
    return data_ + ((static_cast<int64_t>(kind) * kLanes + lane) * ranks_ + source) * pitch_;
  }
  /// 64-bit tags behind a range.
  HEDDLE_HD constexpr int64_t tags(Kind kind, int lane, int source) const { return range(kind, lane, source) + range_; }
  HEDDLE_HD constexpr int64_t num_tags() const { return tags_ / int64_t{sizeof(uint64_t)}; }
  HEDDLE_HD constexpr int64_t words(Kind kind, int lane, int source) const {
    return range(kind, lane, source) + range_ + tags_;
  }
  /// The least window with words whose ranges are as large as those of one of `bytes` without.
  HEDDLE_HD static constexpr int64_t bytes_with_words(int ranks, int64_t bytes) {
    const Window plain(ranks, bytes);
    int64_t pitch = plain.pitch_ / 3 * 4 / kCellAlign * kCellAlign;
    if (words_of(pitch) == 0) return bytes;
    while (pitch - words_of(pitch) < plain.pitch_) pitch += kCellAlign;
    return plain.data_ + int64_t{kKinds} * kLanes * ranks * pitch;
  }
  /// 0: there are none.
  HEDDLE_HD constexpr int64_t word_bytes() const { return words_; }
  HEDDLE_HD constexpr int64_t end() const { return range(Kind::dispatch, 0, 0) + kKinds * kLanes * ranks_ * pitch_; }

 private:
  HEDDLE_HD static constexpr int64_t words_of(int64_t pitch) {
    constexpr int64_t kWorthIt = int64_t{256} << 10;
    return pitch < kWorthIt ? 0 : pitch / 4 / kCellAlign * kCellAlign;
  }

  int ranks_ = 0;
  int64_t data_ = 0;
  int64_t pitch_ = 0;  // from range to range
  int64_t range_ = 0;
  int64_t tags_ = 0;   // bytes
  int64_t words_ = 0;  // bytes
};

/// The least window that gives each range `range_bytes`.
HEDDLE_HD constexpr int64_t window_bytes_for(int ranks, int64_t range_bytes) {
  Carver carver;
  carver.take(int64_t{sizeof(Cells)} * ranks);
  const int64_t range = (range_bytes + kCellAlign - 1) / kCellAlign * kCellAlign;
  int64_t pitch = range + tag_bytes_of(range);
  while (pitch - tag_bytes_of(pitch) < range) pitch += kCellAlign;
  return carver.take(0) + int64_t{kKinds} * kLanes * ranks * pitch;
}

/// How a call carves one range.
struct Range {
  int64_t table = 0;  // offset of the header's table
  int64_t slots = 0;  // offset of slot 0
  int64_t stride = 0;
  int32_t count = 0;  // slots of one round; 0 if not even one fits

  HEDDLE_HD static constexpr Range of(int64_t range_bytes, int64_t table_bytes, int64_t stride) {
    Range range;
    Carver carver;
    carver.take(sizeof(Header));
    range.table = carver.take(table_bytes);
    range.slots = carver.take(0);
    range.stride = stride;
    const int64_t room = range_bytes - range.slots;
    const int64_t count = room < 0 ? 0 : stride == 0 ? INT32_MAX : room / stride;
    range.count = static_cast<int32_t>(count > INT32_MAX ? INT32_MAX : count);
    return range;
  }
  HEDDLE_HD constexpr int64_t slot(int64_t place) const { return slots + place * stride; }
};

HEDDLE_HD constexpr int64_t cell_offset(const Window& window, int source, size_t member) {
  return window.cells(source) + static_cast<int64_t>(member);
}

HEDDLE_HD constexpr int rounds_of(int64_t rows, int64_t slots) {
  return rows <= slots ? 1 : static_cast<int>((rows + slots - 1) / slots);
}

}  // namespace heddle
