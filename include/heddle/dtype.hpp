// Element types of tensors.
#pragma once

#include <heddle/macros.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace heddle {

/// The values travel in headers and hashes: never renumber. u8 stands for raw bytes.
enum class DType : uint8_t { u8 = 0, e4m3 = 1, e5m2 = 2, f16 = 3, bf16 = 4, f32 = 5, i32 = 6, i64 = 7 };

/// Bytes of an element; 0 for a value that is no DType (a header may be garbage).
constexpr HEDDLE_HD size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::u8:
    case DType::e4m3:
    case DType::e5m2: return 1;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::f32:
    case DType::i32: return 4;
    case DType::i64: return 8;
  }
  return 0;
}

/// torch's name without "torch.": bfloat16, float8_e4m3fn, uint8, ...; "unknown" for a value that is no DType.
const char* name_of(DType);

/// Takes name_of()'s names, with or without "torch.", and the enumerators' own (bf16, e4m3, ...).
/// Throws Error{usage} with the legal names.
DType parse_dtype(std::string_view name);

}  // namespace heddle
