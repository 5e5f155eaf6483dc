// All of one instruction set's loops, for the file that is compiled for it.
#pragma once

#include "device/rows_quantise.hpp"
#include "device/rows_sum.hpp"
#include "device/rows_variant.hpp"

namespace heddle {

template <class Isa>
constexpr RowsVariant rows_kernels(const char* name) {
  return {.name = name,
          .sum = RowsSum<Isa>::sum,
          .largest_finite = RowsQuantise<Isa>::largest_finite,
          .cast_e4m3 = RowsQuantise<Isa>::cast_e4m3};
}

}  // namespace heddle
