// The sizes and offsets that peers rely on, as numbers. A change here is a change of the wire: make it on purpose, and
// raise the layout version that ranks compare at birth (I13).
#pragma once

#include <cstddef>

#include "layout/window.hpp"
#include "layout/words.hpp"

namespace heddle::golden {

static_assert(sizeof(RankSet) == 16);
static_assert(sizeof(Refusal) == 48 && offsetof(Refusal, value) == 32);

static_assert(sizeof(Header) == 120);
static_assert(offsetof(Header, hash) == 16 && offsetof(Header, mask) == 24 && offsetof(Header, kind) == 40);
static_assert(offsetof(Header, count) == 48 && offsetof(Header, slots) == 52 && offsetof(Header, rounds) == 56);
static_assert(offsetof(Header, tokens) == 60 && offsetof(Header, offers) == 64);
static_assert(offsetof(Header, row_words) == 68 && offsetof(Header, refusal) == 72);

static_assert(sizeof(FaultCell) == 32 && offsetof(FaultCell, awaited) == 28);
static_assert(sizeof(Offer) == 56 && offsetof(Offer, direct) == 24 && offsetof(Offer, stride) == 48);

static_assert(sizeof(Cells) == 384 && alignof(Cells) == kCellAlign);
static_assert(offsetof(Cells, rows) == 32 && offsetof(Cells, credits) == 64 && offsetof(Cells, offers) == 96);
static_assert(offsetof(Cells, faults) == 112 && offsetof(Cells, closed) == 120 && offsetof(Cells, destroyed) == 128);
static_assert(offsetof(Cells, reset) == 136 && offsetof(Cells, fault) == 144 && offsetof(Cells, offer) == 176);

/// 2048 columns of bf16, top-8, nothing beside the payload.
inline constexpr Shape kPlain{.payload_bytes = 4096, .topk = 8, .experts = 256};
static_assert(Slot::of(kPlain).scales == 4096 && Slot::of(kPlain).token == 4096 && Slot::of(kPlain).ids == 4100);
static_assert(Slot::of(kPlain).ordinals == 4132 && Slot::of(kPlain).weights == 4164);
static_assert(Slot::of(kPlain).stride == 4224);

/// 7168 columns of e4m3 with 56 FP32 scales, as it is staged and as it is stored in place.
inline constexpr Shape kScaled{.payload_bytes = 7168, .scale_words = 56, .topk = 8, .experts = 256};
static_assert(Slot::of(kScaled).scales == 7168 && Slot::of(kScaled).token == 7392);
static_assert(Slot::of(kScaled).stride == 7552 && Slot::of(kScaled, true).stride == 384);

/// By rank map: no columns.
static_assert(Slot::of({.payload_bytes = 16}).stride == 32);

/// A result, and one with the weights' gradient behind it.
static_assert(Slot::of({.kind = Kind::combine, .payload_bytes = 4096, .topk = 8}).stride == 4096);
static_assert(Slot::of({.kind = Kind::combine, .row_weights = true, .payload_bytes = 4096, .topk = 8}).weights == 4096);
static_assert(Slot::of({.kind = Kind::combine, .row_weights = true, .payload_bytes = 4096, .topk = 8}).stride == 4224);

/// Eight ranks in 256 MiB: 32 ranges behind 8 cells.
inline constexpr Window kEight(8, int64_t{256} << 20);
static_assert(kEight.cells(1) == 384 && kEight.range(Kind::dispatch, 0, 0) == 3072);
static_assert(kEight.range_bytes() == 8322944 && kEight.num_tags() == 8192);
static_assert(kEight.tags(Kind::dispatch, 0, 0) == 3072 + 8322944);
static_assert(kEight.range(Kind::dispatch, 0, 1) == 3072 + 8388480);
static_assert(kEight.range(Kind::dispatch, 1, 0) == 3072 + 8 * int64_t{8388480});
static_assert(kEight.range(Kind::combine, 0, 0) == 3072 + 16 * int64_t{8388480});
static_assert(kEight.end() == 3072 + 32 * int64_t{8388480} && kEight.end() <= int64_t{256} << 20);
static_assert(window_bytes_for(8, 8322944) == kEight.end());

/// The same with self-announcing words.
inline constexpr Window kEightWords(8, int64_t{256} << 20, true);
static_assert(kEightWords.range(Kind::dispatch, 0, 1) == kEight.range(Kind::dispatch, 0, 1));
static_assert(kEightWords.range_bytes() == 6242176 && kEightWords.num_tags() == 6160);
static_assert(kEightWords.words(Kind::dispatch, 0, 0) == 3072 + 6291456 && kEightWords.word_bytes() == 2097024);
static_assert(kEight.word_bytes() == 0);
static_assert(Window(8, Window::bytes_with_words(8, int64_t{256} << 20), true).range_bytes() >= kEight.range_bytes());

/// Behind a header and a table of 264 words.
inline constexpr Range kRows = Range::of(kEight.range_bytes(), 4 * 264, Slot::of(kPlain).stride);
static_assert(kRows.table == 128 && kRows.slots == 1280 && kRows.count == 1970);
static_assert(kRows.slot(2) == 1280 + 2 * 4224);

/// Two shapes that differ in one field that all ranks must agree on.
static_assert(kPlain.hash() != kScaled.hash());
static_assert(Shape{}.hash() == 0x881cb9b9e8e03885ull);

}  // namespace heddle::golden
