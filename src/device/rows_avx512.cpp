// The loops over rows for AVX-512.
#include <immintrin.h>

#include "device/rows_kernels.hpp"

namespace heddle {
namespace {

struct Avx512 {
  static constexpr int kWidth = 16;
  static constexpr int kSumVectors = 8;

  HEDDLE_INLINE __m512 fma(float weight, __m512 row, __m512 sum) {
    return _mm512_fmadd_ps(_mm512_set1_ps(weight), row, sum);
  }
};

}  // namespace

const RowsVariant* avx512_rows() {
  static constexpr RowsVariant kVariant = rows_kernels<Avx512>("avx512");
  return &kVariant;
}

}  // namespace heddle
