// A CPU without AVX: the baseline is all there is.
#include "device/rows_variant.hpp"

namespace heddle {

std::vector<const RowsVariant*> runnable_rows_variants() { return {baseline_rows()}; }

}  // namespace heddle
