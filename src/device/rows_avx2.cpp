// The loops over rows for AVX2 with FMA.
#include <immintrin.h>

#include "device/rows_kernels.hpp"

namespace heddle {
namespace {

struct Avx2 {
  static constexpr int kWidth = 8;
  static constexpr int kSumVectors = 8;

  HEDDLE_INLINE __m256 fma(float weight, __m256 row, __m256 sum) {
    return _mm256_fmadd_ps(_mm256_set1_ps(weight), row, sum);
  }
};

}  // namespace

const RowsVariant* avx2_rows() {
  static constexpr RowsVariant kVariant = rows_kernels<Avx2>("avx2");
  return &kVariant;
}

}  // namespace heddle
