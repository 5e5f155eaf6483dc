// The row functions on a GPU, for cuda_rows_test.cpp: a kernel each, run to its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/copy.hpp"
#include "device/quantise_args.hpp"
#include "device/rows_args.hpp"

namespace heddle::testing {

bool has_gpu();

/// Bytes in the GPU's memory, filled from the host; 256-aligned. Throws std::runtime_error on any CUDA error, as all here do.
class GpuBytes {
 public:
  explicit GpuBytes(const std::vector<uint8_t>& bytes);
  ~GpuBytes();
  GpuBytes(GpuBytes&& other) noexcept;
  GpuBytes& operator=(GpuBytes&&) = delete;

  uint8_t* data() const { return data_; }
  std::vector<uint8_t> read() const;

 private:
  uint8_t* data_;
  size_t size_;
};

/// Who does a row: a warp, one warp of a block of four, or a single thread.
enum class Worker { warp, block, solo };

// All pointers, the terms' too, are to GPU memory.
void gpu_sum(Worker, const SumArgs&, const Term* terms, int num_terms);
void gpu_quantise(Worker, const QuantiseArgs&);
void gpu_copy(Worker, void* dst, const void* src, size_t bytes);
void gpu_fill(Worker, void* dst, uint8_t value, size_t bytes);
void gpu_copy_strided(Worker, Strided<uint32_t> dst, Strided<const uint32_t> src, int64_t count);

/// The casts of base/dtype.hpp in device code, of each float.
struct CastBits {
  uint16_t bf16;
  uint16_t f16;
  uint8_t e4m3;
  uint8_t ue8m0;
  uint32_t from_f16;   // of the float's low 16 bits
  uint32_t from_e4m3;  // of its low 8 bits
  bool operator==(const CastBits&) const = default;
};
HEDDLE_HD inline CastBits cast_all(float value) {
  const uint32_t bits = bits_of(value);
  return {to_bf16(value).bits,
          to_f16(value).bits,
          to_e4m3(value).bits,
          to_ue8m0_up(float_of(bits & ~kFloatSign)).bits,
          bits_of(to_float(f16{static_cast<uint16_t>(bits)})),
          bits_of(to_float(e4m3{static_cast<uint8_t>(bits)}))};
}
void gpu_cast_all(const float* values, CastBits* casts, int count);

}  // namespace heddle::testing
