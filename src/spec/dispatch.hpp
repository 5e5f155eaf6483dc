// What every rank receives from a dispatch.
#pragma once

#include <optional>

#include "layout/shape.hpp"
#include "spec/world.hpp"

namespace heddle::spec {

/// What is done to bf16 rows on their way; see quantise.hpp.
enum class Quantise { none, fp8, fp8_pow2, fp8_ue8m0, fp8_row, mxfp8, nvfp4 };

struct DispatchOptions {
  Layout layout = Layout::token_major;
  int alignment = 1;                     // token-major: of the counts only; expert-major: of each group's start too
  int max_tokens = 0;                    // of any rank; a slab and the worst case need it
  bool fixed_size = false;               // outputs are worst-case sized instead of exact; a slab always is
  std::optional<std::int64_t> capacity;  // rows of the outputs, in place of exact or worst-case; not for a slab
  float global_scale = 1.0f;             // of nvfp4
  bool zero_padding = false;             // expert-major: rows in alignment gaps are zero, else unspecified
  Quantise quantise = Quantise::none;
};

enum class Status : std::uint8_t { arrived = 0, masked = 1 };

/// One rank's outputs and handle. n = recv_offset[ranks] tokens arrived, L = local experts, M = max_tokens, `rows` as
/// sized by the options. Rows of x and scales are specified where row_source is not -1 and in zeroed gaps.
/// Rows at index >= capacity are dropped: they count in num_dropped and in the handle's n, and nowhere else.
struct Received {
  Layout layout = Layout::token_major;

  // Outputs.
  std::int64_t rows = 0;
  std::int64_t num_dropped = 0;
  int row_bytes = 0;
  int scale_words = 0;
  Bytes x;                                   // [rows][row_bytes]
  std::vector<std::uint32_t> scales;         // [rows][scale_words]
  std::vector<std::int32_t> ids;             // token-major [rows][topk]: local ids, -1 = not local
  std::vector<float> weights;                // token-major [rows][topk], 0 where ids is -1
  std::vector<float> row_weights;            // others [rows]: summed over duplicate columns, 0 where there is no row
  std::vector<std::int32_t> counts;          // [L]: token-major (row, column) pairs, others rows
  std::vector<std::int32_t> aligned_counts;  // [L] counts rounded up to the alignment
  std::vector<std::int64_t> expert_offsets;  // [L + 1] first row of each group, at most `rows`; not token-major
  std::vector<std::int32_t> row_source;      // [rows] source rank, -1 = no row here
  std::vector<std::int32_t> row_token;       // [rows] token in its source (the slab's src_info), -1 = no row here
  std::vector<std::int64_t> layout_range;    // slab [L][ranks]: low 32 bits count, high 32 first place in the expert

  // Handle.
  std::vector<std::int32_t> recv_offset;    // [ranks + 1]
  std::vector<std::int32_t> recv_token;     // [n]
  std::vector<std::int32_t> source_tokens;  // [ranks] tokens of the source, 0 if masked
  std::vector<std::int32_t> row_of;  // not token-major [n][topk]: row of a first local column, else -1; dropped: -1
  std::vector<float> recv_weights;   // [n][topk] 0 where the id is not local
  std::vector<Status> status;        // [ranks]
};

/// Rows of a worst-case output of `rank`.
std::int64_t worst_rows(const World&, const DispatchOptions&, int rank);

/// One Received per rank. Throws Error{usage} as plan() does, and for options that do not fit the world.
std::vector<Received> dispatch(const World&, const DispatchOptions&, const Mask& = {});

}  // namespace heddle::spec
