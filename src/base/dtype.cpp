#include "base/dtype.hpp"

#include "base/error.hpp"

namespace heddle {
namespace {

struct Name {
  DType dtype;
  const char* torch;
  const char* own;
};

constexpr Name kNames[] = {
    {DType::u8, "uint8", "u8"},     {DType::e4m3, "float8_e4m3fn", "e4m3"}, {DType::e5m2, "float8_e5m2", "e5m2"},
    {DType::f16, "float16", "f16"}, {DType::bf16, "bfloat16", "bf16"},      {DType::f32, "float32", "f32"},
    {DType::i32, "int32", "i32"},   {DType::i64, "int64", "i64"},
};

std::string legal_names() {
  std::string all;
  for (const Name& name : kNames) all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", name.torch, name.own);
  return all;
}

}  // namespace

const char* name_of(DType dtype) {
  for (const Name& name : kNames) {
    if (name.dtype == dtype) return name.torch;
  }
  return "unknown";
}

DType parse_dtype(std::string_view text) {
  constexpr std::string_view kPrefix = "torch.";
  const std::string_view bare = text.substr(text.starts_with(kPrefix) ? kPrefix.size() : 0);
  for (const Name& name : kNames) {
    if (bare == name.torch || bare == name.own) return name.dtype;
  }
  fail(ErrorCode::usage, "dtype '{}' is not known; legal: {}", text, legal_names());
}

}  // namespace heddle
