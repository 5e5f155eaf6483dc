// Whole-number arithmetic of sizes, 64-bit: rows x hidden passes 2^31.
#pragma once

#include <cstdint>

#include "base/macros.hpp"

namespace heddle {

/// Both for value >= 0 and unit > 0.
constexpr HEDDLE_HD int64_t ceil_div(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }
constexpr HEDDLE_HD int64_t round_up(int64_t value, int64_t unit) { return ceil_div(value, unit) * unit; }

}  // namespace heddle
