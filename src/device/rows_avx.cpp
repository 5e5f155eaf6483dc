// Which of the wide variants this CPU runs. The compiler may use any instruction that the file's flags allow, so each flag
// of cmake/HeddleFeatures.cmake is asked for.
#include "device/rows_variant.hpp"

namespace heddle {

std::vector<const RowsVariant*> runnable_rows_variants() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  std::vector<const RowsVariant*> runnable = {baseline_rows()};
  if (avx2) runnable.push_back(avx2_rows());
  if (avx512) runnable.push_back(avx512_rows());
  return runnable;
}

}  // namespace heddle
