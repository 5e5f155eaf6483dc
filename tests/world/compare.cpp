#include "world/compare.hpp"

#include <gmock/gmock.h>

#include <cstring>

#include "support/rank_memory.hpp"

namespace heddle::testing {
namespace {

using ::testing::ElementsAreArray;

template <class T>
std::vector<T> values_of(const TensorView& view) {
  const std::vector<std::byte> bytes = fetch(view);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Two lists, with the first difference named: a full print of thousands of bytes helps nobody.
template <class T>
void expect_same(const char* name, const std::vector<T>& got, const std::vector<T>& wanted) {
  ASSERT_EQ(got.size(), wanted.size()) << name;
  if (got.empty() || std::memcmp(got.data(), wanted.data(), got.size() * sizeof(T)) == 0) return;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &wanted[i], sizeof(T)) == 0) continue;
    FAIL() << name << "[" << i << "] of " << got.size() << " is " << ::testing::PrintToString(got[i]) << ", wanted "
           << ::testing::PrintToString(wanted[i]);
  }
}

template <class T>
void expect_tensor(const char* name, const TensorView& got, const std::vector<T>& wanted) {
  if (!got.is_set() && wanted.empty()) return;
  ASSERT_TRUE(got.is_set()) << name;
  expect_same(name, values_of<T>(got), wanted);
}

std::vector<int> masked_of(const std::vector<spec::Status>& status) {
  std::vector<int> masked;
  for (size_t rank = 0; rank < status.size(); ++rank) {
    if (status[rank] == spec::Status::masked) masked.push_back(static_cast<int>(rank));
  }
  return masked;
}

/// Rows that stand for a token, and all others where they must be zero.
void expect_rows(const Received& got, const spec::Received& wanted, bool zero_padding) {
  ASSERT_EQ(got.x.view.numel() * static_cast<int64_t>(size_of(got.x.view.dtype)),
            static_cast<int64_t>(wanted.x.size()));
  const std::vector<std::byte> fetched = fetch(got.x.view);
  const std::byte* x = fetched.data();
  for (int64_t row = 0; row < wanted.rows; ++row) {
    if (wanted.row_source[row] < 0 && !zero_padding) continue;
    const int64_t at = row * wanted.row_bytes;
    ASSERT_EQ(std::memcmp(x + at, wanted.x.data() + at, static_cast<size_t>(wanted.row_bytes)), 0)
        << "x, row " << row << " of " << wanted.rows << ", from rank " << wanted.row_source[row] << ", token "
        << wanted.row_token[row];
  }
}

/// Where a word of a row's scales lies: by the strides, or in tiles of 128 rows.
int64_t place_of_scale(const TensorView& view, ScaleLayout layout, bool is_slab, int64_t group, int64_t row, int word) {
  const int64_t r = row % group;
  const size_t first = is_slab ? 1 : 0;
  const int64_t before = is_slab ? row / group * view.stride(0) : 0;
  if (layout == ScaleLayout::usual) return before + r * view.stride(first) + word * view.stride(first + 1);
  return before + r / 128 * view.stride(first) + word * view.stride(first + 1) + r % 32 * view.stride(first + 2) +
         r % 128 / 32 * view.stride(first + 3);
}

void expect_scales(const Received& got, const spec::Received& wanted, const Case& c) {
  if (wanted.scale_words == 0) return;
  const TensorView& view = got.scales.view;
  ASSERT_TRUE(view.is_set());
  const std::vector<std::byte> fetched = fetch(view);
  const auto* words = reinterpret_cast<const uint32_t*>(fetched.data());
  const bool is_slab = c.layout == Layout::slab;
  const int64_t group = is_slab ? got.x.view.dim(1) : wanted.rows;
  for (int64_t row = 0; row < wanted.rows; ++row) {
    if (wanted.row_source[row] < 0) continue;
    for (int word = 0; word < wanted.scale_words; ++word) {
      ASSERT_EQ(words[place_of_scale(view, c.scale_layout, is_slab, group, row, word)],
                wanted.scales[row * wanted.scale_words + word])
          << "scale " << word << " of row " << row;
    }
  }
}

/// Local ids of all received tokens, those of dropped rows too.
std::vector<int32_t> local_ids(const spec::Received& wanted, const spec::World& world, int rank) {
  std::vector<int32_t> ids;
  for (int source = 0; source < world.ranks; ++source) {
    for (int i = wanted.recv_offset[source]; i < wanted.recv_offset[source + 1]; ++i) {
      for (int k = 0; k < world.topk; ++k) {
        const int32_t id = spec::id_at(world, world.batches[source], wanted.recv_token[i], k);
        ids.push_back(spec::owns(world, rank, id) ? id - spec::first_expert(world, rank) : -1);
      }
    }
  }
  return ids;
}

void expect_handle(const Handle& got, const spec::Received& wanted, const spec::World& world, int rank) {
  expect_tensor("recv_offset", got.recv_offset(), wanted.recv_offset);
  expect_tensor("recv_token", got.recv_token(), wanted.recv_token);
  expect_tensor("source_tokens", got.source_tokens(), wanted.source_tokens);
  if (world.topk > 0) {
    expect_tensor("recv_weights", got.recv_weights(), wanted.recv_weights);
    expect_tensor("recv_ids", got.recv_ids(), local_ids(wanted, world, rank));
  }
  if (wanted.layout != Layout::token_major) {
    std::vector<int32_t> row_of = values_of<int32_t>(got.row_of());
    for (int32_t& row : row_of) row = row == -2 ? -1 : row;  // the spec does not tell dropped from absent
    expect_same("row_of", row_of, wanted.row_of);
  }
  std::vector<uint8_t> status;
  for (const spec::Status s : wanted.status) status.push_back(static_cast<uint8_t>(s));
  expect_tensor("status", got.status(), status);
}

}  // namespace

void expect_plan(const Plan& got, const spec::Plan& wanted) {
  expect_tensor("plan.ids", got.ids(), wanted.ids);
  expect_tensor("plan.is_token_in_rank", got.is_token_in_rank(), wanted.in_rank);
  expect_tensor("plan.num_tokens_per_expert", got.num_tokens_per_expert(), wanted.pairs_per_expert);
  expect_tensor("plan.num_rows_per_expert", got.num_rows_per_expert(), wanted.rows_per_expert);
  std::vector<int32_t> per_rank;
  for (size_t rank = 1; rank < wanted.send_offset.size(); ++rank) {
    per_rank.push_back(wanted.send_offset[rank] - wanted.send_offset[rank - 1]);
  }
  expect_tensor("plan.num_tokens_per_rank", got.num_tokens_per_rank(), per_rank);
}

void expect_received(const Received& got, const spec::Received& wanted, const Case& c, const Meaning& m, int rank) {
  expect_handle(got.handle, wanted, m.world, rank);
  expect_tensor("row_source", got.row_source.view, wanted.row_source);
  expect_tensor("row_token", got.row_token.view, wanted.row_token);
  expect_rows(got, wanted, c.zero_padding);
  expect_scales(got, wanted, c);
  expect_tensor("num_per_expert", got.num_per_expert.view, wanted.counts);
  if (c.layout == Layout::token_major) {
    expect_tensor("ids", got.ids.view, wanted.ids);
    expect_tensor("weights", got.weights.view, wanted.weights);
  } else {
    expect_tensor("row_weights", got.weights.view, wanted.row_weights);
    expect_tensor("expert_offsets", got.expert_offsets.view, wanted.expert_offsets);
  }
  if (c.layout == Layout::slab) expect_tensor("layout_range", got.layout_range.view, wanted.layout_range);
  EXPECT_EQ(got.masked, masked_of(wanted.status));
  EXPECT_EQ(got.num_dropped, wanted.num_dropped);
}

void expect_combined(const Combined& got, const spec::Combined& wanted) {
  expect_same("combined x", fetch(got.x.view), wanted.x);
  expect_tensor("combined weights", got.weights.view, wanted.weights);
  EXPECT_EQ(got.masked, masked_of(wanted.status));
}

}  // namespace heddle::testing
