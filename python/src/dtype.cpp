#include "dtype.hpp"

#include <fmt/format.h>

#include <array>

namespace heddle::python {
namespace {

using Code = nb::dlpack::dtype_code;

struct Pair {
  DType ours;
  nb::dlpack::dtype theirs;
};

constexpr nb::dlpack::dtype dlpack(Code code, int bits) {
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
}

// The first of a type is what outputs have.
constexpr std::array<Pair, 10> kPairs{{
    {DType::u8, dlpack(Code::UInt, 8)},
    {DType::u8, dlpack(Code::Bool, 8)},
    {DType::e4m3, dlpack(Code::Float8_E4M3FN, 8)},
    {DType::e5m2, dlpack(Code::Float8_E5M2, 8)},
    {DType::f16, dlpack(Code::Float, 16)},
    {DType::bf16, dlpack(Code::Bfloat, 16)},
    {DType::f32, dlpack(Code::Float, 32)},
    {DType::i32, dlpack(Code::Int, 32)},
    {DType::i32, dlpack(Code::UInt, 32)},
    {DType::i64, dlpack(Code::Int, 64)},
}};

}  // namespace

std::optional<DType> dtype_of(nb::dlpack::dtype dtype) {
  for (const Pair& pair : kPairs) {
    if (pair.theirs == dtype) return pair.ours;
  }
  return std::nullopt;
}

nb::dlpack::dtype dlpack_of(DType dtype) {
  for (const Pair& pair : kPairs) {
    if (pair.ours == dtype) return pair.theirs;
  }
  return dlpack(Code::UInt, 8);
}

nb::dlpack::dtype numpy_of(DType dtype) {
  switch (dtype) {
    case DType::bf16: return dlpack(Code::UInt, 16);
    case DType::e4m3:
    case DType::e5m2: return dlpack(Code::UInt, 8);
    default: return dlpack_of(dtype);
  }
}

std::string describe(nb::dlpack::dtype dtype) {
  switch (static_cast<Code>(dtype.code)) {
    case Code::Int: return fmt::format("int{}", dtype.bits);
    case Code::UInt: return fmt::format("uint{}", dtype.bits);
    case Code::Float: return fmt::format("float{}", dtype.bits);
    case Code::Complex: return fmt::format("complex{}", dtype.bits);
    default: return fmt::format("DLPack type {} of {} bits", dtype.code, dtype.bits);
  }
}

}  // namespace heddle::python
