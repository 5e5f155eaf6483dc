// Rows that lie side by side are summed as sum_rows sums them one by one (docs/protocol.md, I8), this rank's own hits first.
#include "device/staged_sum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "device/coop.hpp"
#include "support/dice.hpp"

namespace heddle {
namespace {

using testing::Dice;

constexpr int kColumns = 72;
constexpr int kStride = 160;  // bytes

struct StagedCase {
  int biases;
  int before;
  int own;  // -1: none; 0: all were dropped, which takes a row of zeros
  int after;

  int own_rows() const { return std::max(own, 1); }
  int rows() const { return biases + before + (own < 0 ? 0 : own_rows()) + after; }
};

class Staged {
 public:
  Staged(const StagedCase& tested, uint64_t seed) : tested_(tested) {
    Dice dice(seed);
    stage_.resize(static_cast<size_t>(tested.rows() + 1) * kStride);
    terms_.resize(static_cast<size_t>(tested.rows()));
    for (int row = 0; row < tested.rows(); ++row) {
      for (int i = 0; i < kColumns; ++i) at(row)[i] = to_bf16(static_cast<float>(dice.below(4001)) / 7.0f - 285.0f);
      terms_[row] = {at(row), is_own(row) ? static_cast<float>(dice.below(100)) / 13.0f : 1.0f};
      if (tested.own == 0 && is_own(row)) terms_[row].row = nullptr;
    }
  }

  std::vector<bf16> expected() {
    std::vector<bf16> own(kColumns), out(kColumns);
    std::vector<Term> hits, ranks;
    for (int row = tested_.biases; row < tested_.rows(); ++row) {
      if (is_own(row) && terms_[row].row != nullptr) hits.push_back(terms_[row]);
      if (!is_own(row)) ranks.push_back(terms_[row]);
      if (row == first_own()) ranks.push_back({own.data(), 1.0f});
    }
    host_sum_rows(args(own.data()), hits.data(), static_cast<int>(hits.size()));
    SumArgs all = args(out.data());
    if (tested_.biases > 0) all.bias0 = at(0);
    if (tested_.biases > 1) all.bias1 = at(1);
    host_sum_rows(all, ranks.data(), static_cast<int>(ranks.size()));
    return out;
  }

  std::vector<bf16> summed() {
    std::vector<bf16> out(kColumns);
    const bool has_own = tested_.own >= 0;
    sum_staged(Solo(), {.out = reinterpret_cast<std::byte*>(out.data()), .at = stage_.data(), .stride = kStride, .columns = kColumns,
                        .rows = tested_.rows(), .biases = tested_.biases, .own = has_own ? first_own() : -1,
                        .own_end = has_own ? first_own() + tested_.own_rows() : -1, .terms = terms_.data()});
    return out;
  }

 private:
  bf16* at(int row) { return reinterpret_cast<bf16*>(stage_.data() + row * kStride); }
  int first_own() const { return tested_.own < 0 ? -1 : tested_.biases + tested_.before; }
  bool is_own(int row) const { return tested_.own >= 0 && row >= first_own() && row < first_own() + tested_.own_rows(); }
  static SumArgs args(bf16* out) {
    return {.out = out, .out_dtype = DType::bf16, .in_dtype = DType::bf16, .bias0 = nullptr, .bias1 = nullptr,
            .bias_dtype = DType::bf16, .count = kColumns};
  }

  StagedCase tested_;
  std::vector<std::byte> stage_;
  std::vector<Term> terms_;
};

TEST(StagedSum, IsTheChainOfItsRows) {
  uint64_t seed = 1;
  for (int biases = 0; biases <= 2; ++biases) {
    for (int own = -1; own <= 4; ++own) {
      for (const auto& [before, after] : {std::pair{0, 0}, {0, 3}, {2, 0}, {1, 2}}) {
        Staged staged({biases, before, own, after}, seed++);
        const auto expected = staged.expected();
        const auto summed = staged.summed();
        for (int i = 0; i < kColumns; ++i) {
          ASSERT_EQ(summed[i].bits, expected[i].bits) << biases << " biases, " << before << " ranks, " << own << " own hits, " << after
                                                      << " ranks, column " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace heddle
