// The host's loops over rows: GB/s of all bytes read and written, beside memcpy's.
// In cache: 4 rows; from memory: a pool larger than the last cache, rows taken in an order the prefetcher does not know.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/rows_variant.hpp"

namespace heddle {
namespace {

constexpr int64_t kHidden = 7168;

/// Rows of bf16 noise; next() walks them in a shuffled order.
class Pool {
 public:
  explicit Pool(int64_t rows) : elements_(rows * kHidden), order_(rows) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<bf16> noise(kHidden);
    for (bf16& element : noise) element = to_bf16(normal(random));
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(&elements_[row * kHidden], noise.data(), kHidden * sizeof(bf16));
      order_[row] = row;
    }
    std::shuffle(order_.begin(), order_.end(), random);
  }

  bf16* next() {
    at_ = at_ + 1 == order_.size() ? 0 : at_ + 1;
    return &elements_[order_[at_] * kHidden];
  }

 private:
  std::vector<bf16> elements_;
  std::vector<int64_t> order_;
  size_t at_ = 0;
};

void count_bytes(benchmark::State& state, int64_t bytes_each) {
  state.SetBytesProcessed(state.iterations() * bytes_each);
}

void memcpy_row(benchmark::State& state, int64_t pool_rows) {
  Pool pool(pool_rows);
  for (auto _ : state) std::memcpy(pool.next(), pool.next(), kHidden * sizeof(bf16));
  count_bytes(state, 2 * kHidden * sizeof(bf16));
}

void sum(benchmark::State& state, const RowsVariant* variant, int64_t pool_rows, float weight) {
  Pool pool(pool_rows);
  std::vector<Term> terms(state.range(0));
  for (auto _ : state) {
    for (Term& term : terms) term = {pool.next(), weight};
    variant->sum({.out = pool.next(),
                  .out_dtype = DType::bf16,
                  .in_dtype = DType::bf16,
                  .bias0 = nullptr,
                  .bias1 = nullptr,
                  .bias_dtype = DType::bf16,
                  .count = kHidden},
                 terms.data(), static_cast<int>(terms.size()));
  }
  count_bytes(state, static_cast<int64_t>(terms.size() + 1) * kHidden * sizeof(bf16));
}

void quantise(benchmark::State& state, const RowsVariant* variant, int64_t pool_rows) {
  Pool pool(pool_rows);
  std::vector<uint8_t> q(kHidden);
  std::vector<float> scales(num_scale_words(kHidden, Quantise::fp8));
  for (auto _ : state)
    quantise_row_with(*variant, {pool.next(), DType::bf16, kHidden, Quantise::fp8, q.data(), scales.data()});
  count_bytes(state, kHidden * (sizeof(bf16) + 1));
}

const int kRegistered = [] {
  struct Place {
    const char* name;
    int64_t rows;
  };
  for (const Place& place : {Place{"cache", 4}, Place{"memory", 16384}}) {
    const auto named = [&](const char* what, const char* variant) {
      return fmt::format("{}/{}/{}", what, place.name, variant);
    };
    benchmark::RegisterBenchmark(named("memcpy", "libc").c_str(), memcpy_row, place.rows);
    for (const RowsVariant* variant : runnable_rows_variants()) {
      const char* name = variant->name;
      benchmark::RegisterBenchmark(named("sum", name).c_str(), sum, variant, place.rows, 1.0f)->Arg(1)->Arg(2)->Arg(8);
      benchmark::RegisterBenchmark(named("weighted_sum", name).c_str(), sum, variant, place.rows, 0.3f)->Arg(8);
      benchmark::RegisterBenchmark(named("quantise", name).c_str(), quantise, variant, place.rows);
    }
  }
  return 0;
}();

}  // namespace
}  // namespace heddle
