// The instructions of bulk.hpp, of compute capability 9.0.
#pragma once

#include <cstdint>

namespace heddle::bulk {

__device__ inline uint32_t shared_address(const void* word) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(word));
}

/// One arrival opens it: that of the lane which says how many bytes come.
__device__ inline void gate_init(uint64_t* gate) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(gate)) : "memory");
}

__device__ inline void gate_expect(uint64_t* gate, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(gate)),
               "r"(bytes)
               : "memory");
}

__device__ inline bool gate_passed(const uint64_t* gate, uint32_t parity) {
  uint32_t passed;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(passed)
      : "r"(shared_address(gate)), "r"(parity)
      : "memory");
  return passed != 0;
}

__device__ inline void load_bulk(void* to, const void* from, uint32_t bytes, uint64_t* gate) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(gate))
               : "memory");
}

__device__ inline void store_bulk(void* to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
               "r"(bytes)
               : "memory");
}

__device__ inline void word_async(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

}  // namespace heddle::bulk
