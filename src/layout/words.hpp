// How a low-latency call carves the self-announcing words that one source writes: see docs/protocol.md, forms of arrival.
// The first sixteenth has words that are tagged with their call:
//   note     2 tagged words: {count, tokens}, check
//   table    dispatch: tagged words of two counts each, rows of the reader's experts
//   routes   dispatch [M][K] pairs of tagged words, by slot: route, weight
//   weights  combine with late weights [M][K] tagged words, by slot of the dispatch
// A tagged word is 64 bits: below 32 of a value, above the call's seq. Nobody clears it but reset(). Behind them, and so
// that no shape's tagged words ever lie where another's rows do:
//   rows     [M][row_words] 16-byte words, complemented, by slot; zero where nothing is on its way
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "layout/carver.hpp"
#include "layout/shape.hpp"

namespace heddle {

inline constexpr int kWordBytes = 16;
/// Columns of a row that a warp moves at a time; the words of one part lie together. Of a dispatch, bytes as they travel.
inline constexpr int kDispatchPart = 512;
inline constexpr int kCombinePart = 512;
inline constexpr int kMostWordTokens = 1024;
inline constexpr int kMostWordExperts = 2046;  // of one rank
inline constexpr int kMostWordRanks = 64;
inline constexpr int kMostWordColumns = 32;    // top-k

HEDDLE_HD constexpr uint64_t tagged(uint32_t value, uint64_t seq) { return seq << 32 | value; }
HEDDLE_HD constexpr bool has_tag(uint64_t word, uint64_t seq) {
  return static_cast<uint32_t>(word >> 32) == static_cast<uint32_t>(seq);
}

/// Says what a header says, in short.
HEDDLE_HD constexpr uint32_t check_of(uint64_t hash, uint64_t incarnation) {
  return static_cast<uint32_t>(hash) ^ static_cast<uint32_t>(incarnation) * 0x9E3779B1u;
}

/// One column of a row's route, as its receiver needs it: 10 bits of token, 11 of local expert + 1 (0: another rank's),
/// 11 of ordinal + 1 (0: none).
struct WordRoute {
  int32_t token;
  int32_t expert;   // local to the reader, or -1
  int32_t ordinal;  // or -1

  HEDDLE_HD constexpr uint32_t packed() const {
    return static_cast<uint32_t>(token) << 22 | static_cast<uint32_t>(expert + 1) << 11 |
           static_cast<uint32_t>(ordinal + 1);
  }
  HEDDLE_HD static constexpr WordRoute of(uint32_t packed) {
    return {static_cast<int32_t>(packed >> 22), static_cast<int32_t>(packed >> 11 & 2047) - 1,
            static_cast<int32_t>(packed & 2047) - 1};
  }
};

/// Offsets in bytes from the begin of a source's words.
struct WordRegion {
  int64_t note = 0;
  int64_t table = 0;
  int64_t routes = 0;
  int64_t weights = 0;
  int64_t tagged_end = 0;
  int64_t rows = 0;
  int64_t end = 0;
  int32_t parts = 0;       // of a row
  int32_t part_words = 0;  // of all parts but the last
  int32_t row_words = 0;

  /// Words of payload of `part`; a dispatch has one more behind them: of scales, or of halves that are all ones.
  HEDDLE_HD constexpr int payload_words(int part) const {
    const int whole = part_words - scale_words_;
    return part + 1 < parts ? whole : row_words - part * part_words - scale_words_;
  }

  HEDDLE_HD static constexpr int64_t rows_at(int64_t word_bytes) { return word_bytes / 16 / kCellAlign * kCellAlign; }

  HEDDLE_HD static constexpr WordRegion of(const Shape& shape, int ranks, int64_t word_bytes) {
    const int64_t tokens = shape.max_tokens;
    const bool is_dispatch = shape.kind == Kind::dispatch;
    const int64_t size = is_dispatch ? 1 : 2;  // bytes of a column
    const int64_t columns = shape.payload_bytes / size;
    WordRegion region;
    const int part = is_dispatch ? kDispatchPart : kCombinePart;
    region.parts = static_cast<int32_t>(ceil_div(columns, part));
    region.scale_words_ = is_dispatch ? 1 : 0;
    region.part_words = static_cast<int32_t>(part * size / kWordBytes) + region.scale_words_;
    region.row_words = shape.payload_bytes / kWordBytes + region.parts * region.scale_words_;
    Carver carver;
    region.note = carver.take(2 * int64_t{sizeof(uint64_t)});
    region.table = carver.take(is_dispatch ? (shape.experts / ranks + 2) / 2 * int64_t{sizeof(uint64_t)} : 0);
    region.routes = carver.take(is_dispatch ? tokens * shape.topk * 2 * int64_t{sizeof(uint64_t)} : 0);
    const bool late = !is_dispatch && shape.weights == Weights::late;
    region.weights = carver.take(late ? tokens * shape.topk * int64_t{sizeof(uint64_t)} : 0);
    region.tagged_end = carver.take(0);
    region.rows = rows_at(word_bytes);
    region.end = region.rows + tokens * region.row_words * kWordBytes;
    return region;
  }

 private:
  int32_t scale_words_ = 0;
};

/// Whether a call's rows are self-announcing words, where a buffer has such: a function of what ranks agree on.
HEDDLE_HD constexpr bool fits_words(const Shape& shape, int ranks, int64_t word_bytes) {
  const bool is_dispatch = shape.kind == Kind::dispatch;
  const bool small = shape.max_tokens > 0 && shape.max_tokens <= kMostWordTokens && ranks <= kMostWordRanks &&
                     shape.topk > 0 && shape.topk <= kMostWordColumns && shape.experts / ranks < kMostWordExperts &&
                     shape.experts + ranks <= 1000;  // their bitmasks lie in a block's own memory
  if (!small || shape.layout == Layout::token_major) return false;
  if (shape.payload_bytes <= 0 || shape.payload_bytes % kWordBytes != 0) return false;
  const WordRegion region = WordRegion::of(shape, ranks, word_bytes);
  if (region.end > word_bytes || region.tagged_end > region.rows) return false;
  if (!is_dispatch) {
    return shape.dtype == DType::bf16 && shape.wire == DType::bf16 && shape.weights != Weights::at_source && !shape.row_weights;
  }
  // Others' outputs may be of exact size, which the host must know before rows are placed.
  const bool is_fixed = shape.split || shape.layout == Layout::slab;
  if (is_fixed && shape.quantise == Quantise::none) return shape.scale_words == 0;
  return is_fixed && (shape.quantise == Quantise::fp8 || shape.quantise == Quantise::fp8_pow2 ||
                      shape.quantise == Quantise::fp8_ue8m0 || shape.quantise == Quantise::fp8_row ||
                      shape.quantise == Quantise::mxfp8);
}

}  // namespace heddle
