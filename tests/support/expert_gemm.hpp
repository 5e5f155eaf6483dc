// A GEMM that begins with each expert as soon as its rows are there (protocol/ready.hpp), as an overlapping engine's would.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/dtype.hpp"
#include "support/machine.hpp"

namespace heddle::testing {

/// Rows of a slab of e4m3, times a matrix of small whole numbers. All but `experts` and the sizes in the machine's memory.
struct GemmArgs {
  static constexpr int kColumns = 4;

  const e4m3* x = nullptr;         // [experts][group][hidden]
  const float* scales = nullptr;   // [experts][hidden / 128][group]
  const int32_t* counts = nullptr; // [experts]
  const uint64_t* ready = nullptr; // [experts]
  uint64_t goal = 0;               // of each
  float* y = nullptr;              // [experts][group][kColumns]
  int experts = 0;
  int group = 0;
  int hidden = 0;

  HEDDLE_HD static float factor(int i, int n) { return static_cast<float>((i * 7 + n * 3) % 5 - 2); }

  HEDDLE_HD float element(int expert, int row, int n) const {
    const int64_t at = int64_t{expert} * group + row;
    const int blocks = (hidden + 127) / 128;
    float sum = 0.0f;
    for (int i = 0; i < hidden; ++i) {
      const float scale = scales[(int64_t{expert} * blocks + i / 128) * group + row];
      sum += to_float(x[at * hidden + i]) * scale * factor(i, n);
    }
    return sum;
  }
};

class ExpertGemm {
 public:
  virtual ~ExpertGemm() = default;
  virtual void start() = 0;
  virtual bool is_done(int expert) const = 0;
  /// Returns when all experts are; false: it gave up waiting for one.
  virtual bool finish() = 0;
};

using MakeGemm = std::function<std::unique_ptr<ExpertGemm>(const GemmArgs&)>;

/// A thread an expert.
std::unique_ptr<ExpertGemm> make_cpu_gemm(const GemmArgs&);

inline constexpr int kGemmSeconds = 15;

/// Three ranks: rank 2 alone has rows for the second expert of rank 0, and they are held back until the GEMM has done the
/// first. Fails unless it does, and with the right numbers.
void expect_gemm_beside_held_rows(const MakeMachine&, const MakeGemm&, bool words);

}  // namespace heddle::testing
