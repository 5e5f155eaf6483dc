// Everything one dispatch reads and writes: the only argument of the CPU driver and of the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/context.hpp"
#include "protocol/ids.hpp"
#include "protocol/plan.hpp"
#include "protocol/ready.hpp"
#include "protocol/scale_view.hpp"

namespace heddle {

/// This rank's batch. Strides in bytes (x) and in 4-byte words (scales).
struct BatchView {
  const std::byte* x = nullptr;
  int64_t x_stride = 0;
  const uint32_t* scales = nullptr;  // the caller's; null if none or if the dispatch quantises
  int64_t scale_row_stride = 0;
  int64_t scale_col_stride = 1;
  const float* weights = nullptr;  // [T][K]; null: zeros travel
  const float* global_scale = nullptr;  // [1] of nvfp4; null = 1
};

/// What a combine will need of the receiver's side. n = tokens received; `capacity` of them fit.
struct RouteView {
  int64_t capacity = 0;
  int32_t* recv_offset = nullptr;    // [R + 1]
  int32_t* recv_token = nullptr;     // [n] token index in its source
  int32_t* source_tokens = nullptr;  // [R]
  int32_t* recv_ids = nullptr;       // [n][K] local ids, -1 = not local
  int32_t* row_of = nullptr;         // [n][K] row of the hit at its first column, -2 = dropped, else -1; grouped layouts
  float* recv_weights = nullptr;     // [n][K], 0 where the id is not local; null if K is 0
  uint8_t* status = nullptr;         // [R] SourceStatus
  int32_t* expert_row = nullptr;     // [L][R] first row of a source in an expert's group; grouped layouts
  int32_t* send_row = nullptr;       // [R] or [E] first row of this rank's tokens at each receiver (I14)
};

/// Null pointers are outputs that the layout does not have, or that the caller does not want.
struct OutputView {
  std::byte* x = nullptr;  // [rows][payload_bytes]
  ScaleView scales;
  int64_t rows = 0;                 // of x; rows at and past it are dropped
  int32_t* ids = nullptr;           // token-major [rows][K] local, -1 = not local or padding
  int64_t* wide_ids = nullptr;      // the same for a caller who wants them wide; ids is null then
  float* weights = nullptr;         // token-major [rows][K]
  float* row_weights = nullptr;     // others [rows]
  int32_t* counts = nullptr;        // [L] token-major pairs, others rows
  int32_t* host_counts = nullptr;   // [L] gets what counts gets in an exact dispatch's headers, for the host
  int64_t* expert_offsets = nullptr;  // [L + 1] others: first row of each group
  int32_t* row_source = nullptr;    // [rows], -1 = no row
  int32_t* row_token = nullptr;     // [rows] token index in its source, -1 = no row (a slab's src_info)
  int64_t* layout_range = nullptr;  // slab [L][R] count | first place << 32
  int64_t* num_dropped = nullptr;   // [1]
  int32_t* total_counts = nullptr;  // [L] statistics: gets the counts of all that came added, also of what is dropped here
  bool zero_padding = false;        // clear x in the rows that hold nothing
  ReadyView ready;                  // of grouped layouts

  HEDDLE_HD bool has_ids() const { return ids != nullptr || wide_ids != nullptr; }
  HEDDLE_HD void place_id(int64_t at, int32_t id) const {
    if (ids != nullptr) ids[at] = id;
    if (wide_ids != nullptr) wide_ids[at] = id;
  }
};

/// Memory of the symmetric heap that may take rows in place (I14); it holds `rows` x payload_bytes.
struct OfferView {
  bool is_set = false;
  int64_t segment = 1;
  int64_t offset = 0;
};

struct DispatchArgs {
  Call call;
  PlanView plan;
  BatchView batch;
  RouteView route;
  OutputView out;
  OfferView offer;
  bool makes_plan = false;  // of `plan` only the inputs are there: the send, or a dispatch in one go, makes the rest first
  TableView ids;            // with makes_plan: where plan.ids is to be taken from first; data null: it is there
  IdCheck id_check;         // of those ids: where to tell of bad ones
};

}  // namespace heddle
