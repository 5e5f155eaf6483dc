#include "device/rows_variant.hpp"

#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace heddle {
namespace {

const RowsVariant& choose() {
  const auto runnable = runnable_rows_variants();
  const char* wanted = std::getenv("HEDDLE_SIMD");
  if (wanted == nullptr || *wanted == '\0') return *runnable.back();
  std::string names;
  for (const RowsVariant* variant : runnable) {
    if (std::string_view(wanted) == variant->name) return *variant;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", variant->name);
  }
  fail(ErrorCode::usage, "HEDDLE_SIMD is '{}'; this CPU runs: {}", wanted, names);
}

}  // namespace

const RowsVariant& rows_variant() {
  static const RowsVariant& chosen = choose();
  return chosen;
}

}  // namespace heddle
