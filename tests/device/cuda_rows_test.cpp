// The GPU's rows against the host's, byte for byte, in every way a worker can be: I8, and robustness case 19.
// Skipped where there is no GPU.
#include "cuda_rows.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "device/coop.hpp"
#include "device/pack_block.hpp"
#include "device/quantise.hpp"
#include "device/rows.hpp"
#include "hard_rows.hpp"

namespace heddle {
namespace {

using namespace testing;

constexpr Worker kWorkers[] = {Worker::warp, Worker::block, Worker::solo};

class CudaRows : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
  }
};

/// A host row and its twin on the GPU, guards included.
class TwinRow {
 public:
  TwinRow(DType dtype, int64_t count, int64_t skew) : host_(dtype, count, skew) {}

  GuardedRow& host() { return host_; }
  void* upload() {
    gpu_.emplace_back(host_.bytes());
    return gpu_.back().data() + host_.begin();
  }
  bool is_same() const { return gpu_.back().read() == host_.bytes(); }

 private:
  GuardedRow host_;
  std::vector<GpuBytes> gpu_;
};

template <class T>
GpuBytes to_gpu(const std::vector<T>& values) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  return GpuBytes(std::vector<uint8_t>(bytes, bytes + values.size() * sizeof(T)));
}

struct SumCase {
  DType in;
  DType out;
  DType bias;
  int64_t count;
  int num_terms;
  int num_biases;
  Kind kind;
  int64_t skew;
};

void check_sum(Worker worker, const SumCase& test, std::mt19937& random) {
  SCOPED_TRACE(fmt::format("worker {}, {} -> {}, {} columns, {} terms, {} biases of {}, skew {}",
                           static_cast<int>(worker), name_of(test.in), name_of(test.out), test.count, test.num_terms,
                           test.num_biases, name_of(test.bias), test.skew));
  const float weights[] = {1.0f, 0.3f, -1.7f, 0x1p-130f, -0.0f, 3e38f};
  std::vector<TwinRow> rows;
  std::vector<Term> host_terms, gpu_terms;
  for (int t = 0; t < test.num_terms; ++t) {
    rows.emplace_back(test.in, test.count, t % 2 * test.skew);
    fill(rows.back().host().data(), test.in, test.count, test.kind, random);
  }
  for (TwinRow& row : rows) {
    const float weight = weights[random() % std::size(weights)];
    host_terms.push_back({row.host().data(), weight});
    gpu_terms.push_back({row.upload(), weight});
  }
  TwinRow bias0(test.bias, test.count, 0), bias1(test.bias, test.count, test.skew), out(test.out, test.count, 0);
  fill(bias0.host().data(), test.bias, test.count, test.kind, random);
  fill(bias1.host().data(), test.bias, test.count, test.kind, random);
  const auto args = [&](void* to, const void* first, const void* second) {
    return SumArgs{.out = to,
                   .out_dtype = test.out,
                   .in_dtype = test.in,
                   .bias0 = test.num_biases > 0 ? first : nullptr,
                   .bias1 = test.num_biases > 1 ? second : nullptr,
                   .bias_dtype = test.bias,
                   .count = test.count};
  };
  const GpuBytes terms = to_gpu(gpu_terms);
  gpu_sum(worker, args(out.upload(), bias0.upload(), bias1.upload()), reinterpret_cast<const Term*>(terms.data()),
          test.num_terms);
  sum_rows(Solo{}, args(out.host().data(), bias0.host().data(), bias1.host().data()), host_terms.data(),
           test.num_terms);
  EXPECT_TRUE(out.is_same());
}

TEST_F(CudaRows, SumsAreTheHosts) {
  std::mt19937 random(1);
  for (DType in : kFloats) {
    for (DType out : kFloats) {
      for (Kind kind : {Kind::normal, Kind::any_bits}) {
        for (int num_terms : {0, 1, 2, 3, 7, 8}) {
          const Worker worker = kWorkers[random() % 3];
          const DType bias = kFloats[random() % 3];
          const auto num_biases = static_cast<int>(random() % 3);
          check_sum(worker, {in, out, bias, 7168, num_terms, num_biases, kind, 0}, random);
          check_sum(worker, {in, out, bias, 1 + static_cast<int64_t>(random() % 600), num_terms, num_biases, kind, 0},
                    random);
          check_sum(worker, {in, out, bias, 333, num_terms, num_biases, kind, 1}, random);
        }
      }
    }
  }
}

TEST_F(CudaRows, WidenedRowsAreTheHosts) {
  std::mt19937 random(8);
  for (int64_t count : {8, 264, 1032, 3584, 7168, 7172}) {
    for (Kind kind : {Kind::normal, Kind::any_bits}) {
      check_sum(Worker::warp, {DType::bf16, DType::f32, DType::bf16, count, 0, 1, kind, 0}, random);
    }
  }
}

/// Rows packed, and then summed as packed.
void check_packed(Worker worker, ResultWire wire, const SumCase& test, std::mt19937& random) {
  SCOPED_TRACE(fmt::format("worker {}, wire {}, {}, {} columns, {} terms, skew {}", static_cast<int>(worker), static_cast<int>(wire),
                           name_of(test.in), test.count, test.num_terms, test.skew));
  std::vector<TwinRow> rows, packed;
  std::vector<Term> host_packed, gpu_packed;
  for (int t = 0; t < test.num_terms; ++t) {
    rows.emplace_back(test.in, test.count, t % 2 * test.skew);
    packed.emplace_back(DType::u8, PackedRow::of(test.count, wire).bytes, 0);
    fill(rows.back().host().data(), test.in, test.count, test.kind, random);
  }
  for (size_t t = 0; t < rows.size(); ++t) {
    const auto args = [&](void* to) {
      return SumArgs{.out = to, .out_dtype = DType::u8, .in_dtype = test.in, .bias0 = nullptr, .bias1 = nullptr,
                     .bias_dtype = test.in, .count = test.count, .out_wire = wire};
    };
    const std::vector<Term> host_terms{{rows[t].host().data(), 1.0f}, {rows[0].host().data(), 0.3f}};
    const GpuBytes terms = to_gpu(std::vector<Term>{{rows[t].upload(), 1.0f}, {rows[0].upload(), 0.3f}});
    gpu_packed.push_back({packed[t].upload(), 0.7f});
    host_packed.push_back({packed[t].host().data(), 0.7f});
    gpu_sum(worker, args(const_cast<void*>(gpu_packed.back().row)), reinterpret_cast<const Term*>(terms.data()), 2);
    sum_rows(Solo{}, args(packed[t].host().data()), host_terms.data(), 2);
    EXPECT_TRUE(packed[t].is_same());
  }
  TwinRow bias(test.bias, test.count, test.skew), out(test.out, test.count, 0);
  fill(bias.host().data(), test.bias, test.count, test.kind, random);
  const int num_own = static_cast<int>(random() % 4);  // 3: there are none
  const auto args = [&](void* to, const void* first) {
    SumArgs sum{.out = to, .out_dtype = test.out, .in_dtype = DType::u8, .bias0 = test.num_biases > 0 ? first : nullptr,
                .bias1 = nullptr, .bias_dtype = test.bias, .count = test.count, .in_wire = wire};
    if (num_own < 3) sum.own = {.first = 1, .end = 1 + num_own, .dtype = test.in, .is_row = num_own == 1};
    return sum;
  };
  for (int own = 0; own < num_own % 3; ++own) {
    host_packed.insert(host_packed.begin() + 1, {rows[static_cast<size_t>(own)].host().data(), 1.0f});
    gpu_packed.insert(gpu_packed.begin() + 1, {rows[static_cast<size_t>(own)].upload(), 1.0f});
  }
  const GpuBytes terms = to_gpu(gpu_packed);
  const auto count = static_cast<int>(host_packed.size());
  gpu_sum(worker, args(out.upload(), bias.upload()), reinterpret_cast<const Term*>(terms.data()), count);
  sum_rows(Solo{}, args(out.host().data(), bias.host().data()), host_packed.data(), count);
  EXPECT_TRUE(out.is_same());
}

TEST_F(CudaRows, PackedRowsAreTheHosts) {
  std::mt19937 random(9);
  for (ResultWire wire : {ResultWire::fp8, ResultWire::logfmt10}) {
    for (DType in : kFloats) {
      for (Kind kind : {Kind::normal, Kind::any_bits}) {
        for (int64_t count : {8, 136, 520, 1032, 7168, 333}) {
          const DType out = kFloats[random() % 3], bias = kFloats[random() % 3];
          check_packed(kWorkers[random() % 3], wire, {in, out, bias, count, 3, 1, kind, 0}, random);
          check_packed(kWorkers[random() % 3], wire, {in, out, bias, count, 6, 0, kind, 1}, random);
        }
      }
    }
  }
}

TEST_F(CudaRows, EveryBf16IsPackedAsOnTheHost) {
  std::mt19937 random(10);
  for (ResultWire wire : {ResultWire::fp8, ResultWire::logfmt10}) {
    TwinRow row(DType::bf16, 65536, 0), packed(DType::u8, PackedRow::of(65536, wire).bytes, 0);
    auto* values = static_cast<uint16_t*>(row.host().data());
    for (uint32_t i = 0; i < 65536; ++i) values[i] = static_cast<uint16_t>(i);
    const auto args = [&](void* to) {
      return SumArgs{.out = to, .out_dtype = DType::u8, .in_dtype = DType::bf16, .bias0 = nullptr, .bias1 = nullptr,
                     .bias_dtype = DType::bf16, .count = 65536, .out_wire = wire};
    };
    const Term host_term{row.host().data(), 1.0f};
    const GpuBytes term = to_gpu(std::vector<Term>{{row.upload(), 1.0f}});
    gpu_sum(Worker::warp, args(packed.upload()), reinterpret_cast<const Term*>(term.data()), 1);
    sum_rows(Solo{}, args(packed.host().data()), &host_term, 1);
    EXPECT_TRUE(packed.is_same());
  }
}

TEST_F(CudaRows, QuantisedRowsAreTheHosts) {
  std::mt19937 random(2);
  for (DType dtype : kFloats) {
    for (Quantise mode : {Quantise::none, Quantise::fp8, Quantise::fp8_pow2, Quantise::fp8_ue8m0, Quantise::fp8_row,
                          Quantise::mxfp8, Quantise::nvfp4}) {
      for (Kind kind : {Kind::normal, Kind::any_bits}) {
        for (int64_t hidden : {1, 8, 120, 128, 136, 513, 1024, 1032, 7168, 7176}) {
          const Worker worker = kWorkers[random() % 3];
          SCOPED_TRACE(fmt::format("worker {}, {}, mode {}, hidden {}", static_cast<int>(worker), name_of(dtype),
                                   static_cast<int>(mode), hidden));
          TwinRow x(dtype, hidden, random() % 4 == 0), scales(DType::f32, num_scale_words(hidden, mode), 0);
          const auto copied = hidden * static_cast<int64_t>(size_of(dtype));
          TwinRow q(DType::u8, mode == Quantise::none ? copied : quantised_bytes(hidden, mode), 0);
          fill(x.host().data(), dtype, hidden, kind, random);
          const auto args = [&](const void* from, void* to, void* to_scales) {
            return QuantiseArgs{from, dtype, hidden, mode, static_cast<uint8_t*>(to), to_scales};
          };
          gpu_quantise(worker, args(x.upload(), q.upload(), scales.upload()));
          quantise_row(Solo{}, args(x.host().data(), q.host().data(), scales.host().data()));
          EXPECT_TRUE(q.is_same());
          EXPECT_TRUE(scales.is_same());
        }
      }
    }
  }
}

TEST_F(CudaRows, RowsThatAreCastWhereTheyLieAreTheHosts) {
  std::mt19937 random(7);
  for (DType dtype : kFloats) {
    for (Quantise mode : {Quantise::fp8, Quantise::fp8_ue8m0, Quantise::fp8_row, Quantise::mxfp8, Quantise::nvfp4}) {
      for (int64_t hidden : {8, 136, 1024, 2056, 7168}) {
        SCOPED_TRACE(fmt::format("{}, mode {}, hidden {}", name_of(dtype), static_cast<int>(mode), hidden));
        TwinRow x(dtype, hidden, 0), scales(DType::f32, num_scale_words(hidden, mode), 0);
        fill(x.host().data(), dtype, hidden, Kind::normal, random);
        const auto args = [&](void* row, void* to_scales) {
          return QuantiseArgs{row, dtype, hidden, mode, static_cast<uint8_t*>(row), to_scales};
        };
        gpu_quantise(Worker::warp, args(x.upload(), scales.upload()));
        quantise_row(Solo{}, args(x.host().data(), scales.host().data()));
        EXPECT_TRUE(x.is_same());
        EXPECT_TRUE(scales.is_same());
      }
    }
  }
}

TEST_F(CudaRows, CastsAreTheHosts) {
  std::mt19937 random(3);
  std::vector<float> values;
  for (uint32_t i = 0; i < 1u << 20; ++i) {
    const uint32_t masks[] = {~0u, 0xFFFF8000u, 0xFFF80000u, 0xFFFFF000u};
    values.push_back(float_of(i < 0x10000 ? i << 16 | (i & 0xFFFF) : static_cast<uint32_t>(random()) & masks[i % 4]));
  }
  const GpuBytes from = to_gpu(values), to = to_gpu(std::vector<CastBits>(values.size()));
  gpu_cast_all(reinterpret_cast<const float*>(from.data()), reinterpret_cast<CastBits*>(to.data()),
               static_cast<int>(values.size()));
  const std::vector<uint8_t> bytes = to.read();
  for (size_t i = 0; i < values.size(); ++i) {
    CastBits got;
    std::memcpy(&got, &bytes[i * sizeof got], sizeof got);
    ASSERT_EQ(got, cast_all(values[i])) << std::hex << bits_of(values[i]);
  }
}

// The rounding instructions must agree with the casts on every kind of number; they do the work in sums and quantisation.
TEST_F(CudaRows, RoundingInstructionsAreTheHostsCasts) {
  std::mt19937 random(4);
  constexpr int64_t kCount = 1 << 20;
  TwinRow x(DType::f32, kCount, 0);
  fill(x.host().data(), DType::f32, kCount, Kind::any_bits, random);
  auto* values = static_cast<float*>(x.host().data());
  for (int64_t i = 0; i < kCount; i += 2) values[i] = float_of(bits_of(values[i]) & 0xFFFF8000u);
  for (int64_t i = 0; i < kCount; i += 3)
    values[i] = float_of((bits_of(values[i]) & 0xFFFFF000u) % 0x10000000u + 0x38000000u);
  const void* from = x.upload();
  for (DType dtype : kFloats) {
    TwinRow out(dtype, kCount, 0);
    const auto args = [&](void* to, const void* bias) {
      return SumArgs{to, dtype, DType::bf16, bias, nullptr, DType::f32, kCount};
    };
    gpu_sum(Worker::warp, args(out.upload(), from), nullptr, 0);
    sum_rows(Solo{}, args(out.host().data(), values), nullptr, 0);
    EXPECT_TRUE(out.is_same()) << name_of(dtype);
  }
}

TEST_F(CudaRows, CopiesAndFillsAreTheHosts) {
  std::mt19937 random(5);
  for (Worker worker : kWorkers) {
    for (int64_t skew : {0, 1, 4}) {
      for (int64_t bytes : {0, 1, 15, 16, 17, 511, 4096, 14336, 14339}) {
        SCOPED_TRACE(fmt::format("worker {}, skew {}, {} bytes", static_cast<int>(worker), skew, bytes));
        TwinRow from(DType::u8, bytes, skew), to(DType::u8, bytes, skew), filled(DType::u8, bytes, skew);
        for (int64_t i = 0; i < bytes; ++i)
          static_cast<uint8_t*>(from.host().data())[i] = static_cast<uint8_t>(random());
        gpu_copy(worker, to.upload(), from.upload(), bytes);
        gpu_fill(worker, filled.upload(), 0xC3, bytes);
        copy_bytes(Solo{}, to.host().data(), from.host().data(), bytes);
        fill_bytes(Solo{}, filled.host().data(), 0xC3, bytes);
        EXPECT_TRUE(to.is_same());
        EXPECT_TRUE(filled.is_same());
      }
    }
    for (int64_t stride : {1, 3}) {
      TwinRow from(DType::f32, 56 * 3, 0), to(DType::f32, 56 * 3, 0);
      fill(from.host().data(), DType::f32, 56 * 3, Kind::any_bits, random);
      const auto words = [](auto* row) { return static_cast<uint32_t*>(row); };
      gpu_copy_strided(worker, {words(to.upload()), 1}, {words(from.upload()), stride}, 56);
      copy_strided_words(Solo{}, {words(to.host().data()), 1}, {words(from.host().data()), stride}, 56);
      EXPECT_TRUE(to.is_same());
    }
  }
}

}  // namespace
}  // namespace heddle
