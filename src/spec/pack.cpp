#include "spec/pack.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/dtype.hpp"

namespace heddle::spec {
namespace {

constexpr std::int64_t kInf = 0x7F800000;
constexpr std::int64_t kOctave = std::int64_t{1} << 23;

std::int64_t magnitude_of(float value) { return std::bit_cast<std::uint32_t>(std::fabs(value)); }

struct Fp8 {
  float scale;
  float multiplier;

  explicit Fp8(const std::vector<float>& block) {
    float a = 0x1p-100f;
    for (float x : block) a = std::max(a, std::fabs(x));
    scale = a * (1.0f / 448.0f);
    multiplier = 448.0f / a;
  }
  std::uint32_t mark() const { return std::bit_cast<std::uint32_t>(scale); }
  std::uint32_t code(float x) const { return to_e4m3(x * multiplier).bits; }
};

struct Logfmt {
  std::int64_t first = 0;
  std::int64_t step = 0;

  explicit Logfmt(const std::vector<float>& block) {
    std::int64_t most = 0, least = kInf;
    for (float x : block) {
      const std::int64_t m = magnitude_of(x);
      most = std::max(most, m);
      if (m != 0) least = std::min(least, m);
    }
    first = std::max({std::min(least, most), most - 16 * kOctave, std::int64_t{0}}) / 65536 * 65536;
    step = 1 + (most - first) / 4080;
  }
  std::uint32_t mark() const { return static_cast<std::uint32_t>(first / 65536 + step * 65536); }

  std::uint32_t code(float x) const { return (std::signbit(x) ? 512 : 0) + static_cast<std::uint32_t>(number(magnitude_of(x))); }

  std::int64_t number(std::int64_t m) const {
    if (m == 0) return 0;
    if (m < first) return m + kOctave >= first ? 1 : 0;
    const std::int64_t factor = ((std::int64_t{1} << 32) - 1) / (8 * step);
    const std::int64_t steps = ((m - first) * factor + (std::int64_t{1} << 31)) >> 32;
    return 1 + std::min({steps, std::int64_t{510}, (kInf - 1 - first) / (8 * step)});
  }
};

float value_of_log(std::uint32_t mark, std::uint32_t code) {
  const std::uint32_t number = code % 512;
  const std::uint32_t bits = number == 0 ? 0 : mark % 65536 * 65536 + (number - 1) * 8 * (mark / 65536);
  return std::bit_cast<float>(bits + (code >= 512 ? 0x80000000u : 0));
}

template <class Format>
void pack_block(const std::vector<float>& block, PackedRow& to) {
  const Format format(block);
  to.marks.push_back(format.mark());
  for (float x : block) to.codes.push_back(format.code(x));
}

void pack_broken_block(Pack pack, const std::vector<float>& block, PackedRow& to) {
  to.marks.push_back(pack == Pack::fp8 ? 0x7FFFFFFF : 0x7FFF);
  for (float x : block) {
    if (pack == Pack::fp8) to.codes.push_back(to_e4m3(x).bits);
    else to.codes.push_back((std::signbit(x) ? 512 : 0) + (x == 0 ? 0 : 1));
  }
}

}  // namespace

PackedRow pack(Pack pack, const std::vector<float>& row) {
  PackedRow packed;
  for (std::size_t first = 0; first < row.size(); first += 128) {
    const std::vector<float> block(row.begin() + first, row.begin() + std::min(row.size(), first + 128));
    const bool is_whole = std::all_of(block.begin(), block.end(), [](float x) { return std::isfinite(x); });
    if (!is_whole) pack_broken_block(pack, block, packed);
    else if (pack == Pack::fp8) pack_block<Fp8>(block, packed);
    else pack_block<Logfmt>(block, packed);
  }
  return packed;
}

std::vector<float> unpack(Pack pack, const PackedRow& packed) {
  std::vector<float> row;
  for (std::size_t i = 0; i < packed.codes.size(); ++i) {
    const std::uint32_t mark = packed.marks[i / 128], code = packed.codes[i];
    row.push_back(pack == Pack::fp8 ? to_float(e4m3{static_cast<std::uint8_t>(code)}) * std::bit_cast<float>(mark)
                                    : value_of_log(mark, code));
  }
  return row;
}

}  // namespace heddle::spec
