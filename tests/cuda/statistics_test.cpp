// Statistics that calls on a GPU add to tensors of the caller's: in each replay of a graph, too.
#include <gmock/gmock.h>

#include <cstring>
#include <thread>

#include "cuda/gpu_rank.hpp"

namespace heddle::testing {
namespace {

using std::chrono::milliseconds;

template <class T>
std::vector<T> values_of(const TensorView& view) {
  const auto bytes = fetch(view);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

enum class By { words, pump };

class Statistics : public ::testing::TestWithParam<By> {
 protected:
  static DispatchOptions options(const Placement& on) {
    DispatchOptions chosen = GpuRank::fixed(on);
    if (GetParam() == By::words) chosen.layout = Layout::slab, chosen.quantise = Quantise::fp8;
    return chosen;
  }
};

struct Totals {
  std::vector<int32_t> no_counts = std::vector<int32_t>(kExperts / 2);
  std::vector<int64_t> no_waits = std::vector<int64_t>(2);
  TensorView counts = lend(view_of(no_counts.data(), DType::i32, {kExperts / 2}));
  TensorView waits = lend(view_of(no_waits.data(), DType::i64, {2}));
  TensorView back = lend(view_of(no_waits.data(), DType::i64, {2}));
};

TEST_P(Statistics, AddUpOverCallsAndReplays) {
  HEDDLE_NEEDS_GPU();
  on_gpus(2, {}, [](GpuRank& r, Bootstrap& group) {
    const Totals totals;
    DispatchInput input = r.input();
    input.counts_total = totals.counts;
    input.waits_total = totals.waits;
    const int64_t rows = (GetParam() == By::words ? kExperts / 2 : 1) * 2 * kTokens;
    std::vector<uint16_t> zeros(static_cast<size_t>(rows) * kHidden);
    const TensorView experts = lend(view_of(zeros.data(), DType::bf16, {rows, kHidden}));
    const TensorView ids = r.ids_view();
    Received received;
    const auto there_and_back = [&] {
      received = r.buffer().dispatch(ids, input, options(r.here()));
      r.buffer().combine(received.handle, {.x = experts, .waits_total = totals.back}, {.on = r.here()});
    };
    there_and_back();
    r.stream().wait();
    const auto once = values_of<int32_t>(received.num_per_expert.view);
    EXPECT_EQ(values_of<int32_t>(totals.counts), once);
    const Graph graph(r.stream().get(), there_and_back);
    for (int replay = 0; replay < 3; ++replay) {
      group.barrier("replay");
      if (r.index() == 1) std::this_thread::sleep_for(milliseconds(30));
      graph.replay();
      r.stream().wait();
    }
    std::vector<int32_t> wanted;
    for (int32_t count : once) wanted.push_back(4 * count);
    EXPECT_EQ(values_of<int32_t>(totals.counts), wanted);
    const auto waits = values_of<int64_t>(totals.waits), back = values_of<int64_t>(totals.back);
    if (r.index() == 0) {
      EXPECT_GT(waits[1], waits[0]) << "rank 1 was late";
    }
    EXPECT_THAT(waits, ::testing::Each(::testing::Ge(0)));
    EXPECT_THAT(back, ::testing::Each(::testing::Ge(0)));
    EXPECT_GT(waits[0] + waits[1] + back[0] + back[1], 0);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Statistics, ::testing::Values(By::words, By::pump),
                         [](const auto& tested) { return tested.param == By::words ? "words" : "pump"; });

}  // namespace
}  // namespace heddle::testing
