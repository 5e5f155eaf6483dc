#include "spec/quantise.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/dtype.hpp"

namespace heddle::spec {
namespace {

constexpr int kBlock = 128;

struct Scale {
  float stored;
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

Scale scale_of(Quantise form, float largest) {
  const float scale = largest * (1.0f / 448.0f);
  if (form == Quantise::fp8) return {scale, 448.0f / largest};
  int exponent = 0;
  const float fraction = std::frexp(scale, &exponent);  // scale = fraction * 2^exponent, fraction in [1/2, 1)
  if (fraction == 0.5f) --exponent;
  return {std::ldexp(1.0f, exponent), std::ldexp(1.0f, -exponent)};
}

float largest_finite(const float* begin, const float* end) {
  float largest = 1e-4f;
  for (const float* x = begin; x != end; ++x) {
    if (std::isfinite(*x)) largest = std::max(largest, std::fabs(*x));
  }
  return largest;
}

}  // namespace

int quantised_scale_words(Quantise form, int hidden) {
  const int blocks = (hidden + kBlock - 1) / kBlock;
  if (form == Quantise::none) return 0;
  return form == Quantise::fp8_ue8m0 ? (blocks + 3) / 4 : blocks;
}

QuantisedRow quantise_row(Quantise form, const Bytes& row) {
  const std::vector<float> values = widened(row);
  const int hidden = static_cast<int>(values.size());
  QuantisedRow out{Bytes(hidden), std::vector<std::uint32_t>(quantised_scale_words(form, hidden))};
  for (int block = 0; block * kBlock < hidden; ++block) {
    const int end = std::min(hidden, (block + 1) * kBlock);
    const Scale scale = scale_of(form, largest_finite(&values[block * kBlock], values.data() + end));
    for (int i = block * kBlock; i < end; ++i) {
      out.values[i] = std::byte{to_e4m3(values[i] * scale.multiplier).bits};
    }
    const auto bits = std::bit_cast<std::uint32_t>(scale.stored);
    if (form == Quantise::fp8_ue8m0) out.scales[block / 4] |= bits >> 23 << (block % 4 * 8);
    else out.scales[block] = bits;
  }
  return out;
}

}  // namespace heddle::spec
