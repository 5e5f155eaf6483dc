#include "device/rows.hpp"

#include "base/error.hpp"
#include "device/pack.hpp"
#include "device/rows_variant.hpp"

namespace heddle {
namespace {

void check_float(const char* argument, DType dtype) {
  HEDDLE_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
               "sum_rows: {} is {}; legal: float32, bfloat16, float16", argument, name_of(dtype));
}

}  // namespace

void host_sum_rows(const SumArgs& args, const Term* terms, int num_terms) {
  if (!is_packed(args.in_wire)) check_float("in_dtype", args.in_dtype);
  if (!is_packed(args.out_wire)) check_float("out_dtype", args.out_dtype);
  if (args.bias0 != nullptr) check_float("bias_dtype", args.bias_dtype);
  HEDDLE_CHECK(!is_packed(args.out_wire) || args.bias0 == nullptr || (args.bias1 == nullptr && num_terms == 0),
               "sum_rows: a packed sum has {} terms and a bias; legal: terms, or bias0 alone", num_terms);
  if (args.is_packed()) return host_sum_packed(args, terms, num_terms);
  rows_variant().sum(args, terms, num_terms);
}

}  // namespace heddle
