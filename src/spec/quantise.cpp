#include "spec/quantise.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/dtype.hpp"

namespace heddle::spec {
namespace {

struct Form {
  int block;       // channels
  bool is_byte;    // of a scale
  float least;     // of a
};

Form form_of(Quantise form, int hidden) {
  switch (form) {
    case Quantise::fp8_row: return {std::max(hidden, 1), false, 1e-4f};
    case Quantise::fp8_ue8m0: return {128, true, 1e-4f};
    case Quantise::mxfp8: return {32, true, 0.0f};
    case Quantise::nvfp4: return {16, true, 0.0f};
    default: return {128, false, 1e-4f};
  }
}

struct Scale {
  std::uint32_t stored;
  float multiplier;
};

std::vector<float> widened(const Bytes& row) {
  std::vector<float> values(row.size() / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    bf16 element;
    std::memcpy(&element, &row[2 * i], sizeof element);
    values[i] = to_float(element);
  }
  return values;
}

/// The exponent k of the smallest power of two >= scale that a scale can be.
int exponent_of(float scale) {
  if (scale <= std::ldexp(1.0f, -127)) return -127;
  int exponent = 0;
  const float fraction = std::frexp(scale, &exponent);  // scale = fraction * 2^exponent, fraction in [1/2, 1)
  return fraction == 0.5f ? exponent - 1 : exponent;
}

Scale scale_of(Quantise form, float a, float global) {
  if (form == Quantise::nvfp4) {
    const e4m3 scale = to_e4m3(global * (a * (1.0f / 6.0f)));
    return {scale.bits, scale.bits == 0 ? 0.0f : global / to_float(scale)};
  }
  const float scale = a * (1.0f / 448.0f);
  if (form == Quantise::fp8 || form == Quantise::fp8_row) return {std::bit_cast<std::uint32_t>(scale), 448.0f / a};
  const int k = exponent_of(scale);
  const bool is_byte = form != Quantise::fp8_pow2;
  const auto stored = is_byte ? static_cast<std::uint32_t>(k + 127) : std::bit_cast<std::uint32_t>(std::ldexp(1.0f, k));
  return {stored, std::ldexp(1.0f, -k)};
}

/// One block of a row; NaN marks a block that its form cannot hold.
Scale scale_of_block(Quantise form, const float* begin, const float* end, float global) {
  float a = form_of(form, 0).least;
  bool all_finite = true;
  for (const float* x = begin; x != end; ++x) {
    if (std::isfinite(*x)) a = std::max(a, std::fabs(*x));
    else all_finite = false;
  }
  if (form == Quantise::nvfp4 && !all_finite) return {0x7F, 0.0f};
  return scale_of(form, a, global);
}

}  // namespace

int quantised_scale_words(Quantise form, int hidden) {
  if (form == Quantise::none) return 0;
  const Form f = form_of(form, hidden);
  const int blocks = (hidden + f.block - 1) / f.block;
  return f.is_byte ? (blocks + 3) / 4 : blocks;
}

int quantised_row_bytes(Quantise form, int hidden) { return form == Quantise::nvfp4 ? (hidden + 1) / 2 : hidden; }

QuantisedRow quantise_row(Quantise form, const Bytes& row, float global_scale) {
  const std::vector<float> values = widened(row);
  const int hidden = static_cast<int>(values.size());
  const Form f = form_of(form, hidden);
  QuantisedRow out{Bytes(quantised_row_bytes(form, hidden)), std::vector<std::uint32_t>(quantised_scale_words(form, hidden))};
  for (int block = 0; block * f.block < hidden; ++block) {
    const int end = std::min(hidden, (block + 1) * f.block);
    const Scale scale = scale_of_block(form, &values[block * f.block], values.data() + end, global_scale);
    for (int i = block * f.block; i < end; ++i) {
      const float value = values[i] * scale.multiplier;
      if (form == Quantise::nvfp4) out.values[i / 2] |= std::byte{to_e2m1(value).bits} << (i % 2 * 4);
      else out.values[i] = std::byte{to_e4m3(value).bits};
    }
    if (f.is_byte) out.scales[block / 4] |= scale.stored << (block % 4 * 8);
    else out.scales[block] = scale.stored;
  }
  return out;
}

}  // namespace heddle::spec
