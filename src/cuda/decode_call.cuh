// What the decode pumps of dispatch and combine have in common, and how they end.
//
// Every block reads the ledger for itself; the last to have read it (the clerk) advances it, off everybody's way. Blocks end
// when their own work does. Only where a host waits, or something went wrong, one block (the closer) stays until all are
// done.
#pragma once

#include <cstdint>

#include "cuda/decode.hpp"
#include "cuda/decode_books.cuh"
#include "cuda/steps.cuh"
#include "cuda/token_bits.cuh"

namespace heddle {

__device__ inline bool is_unusual(const Site& site) { return *const_cast<volatile uint32_t*>(&site.decode->unusual) != 0; }

class DecodeCall : protected DecodeBooks {
 protected:
  using DecodeBooks::DecodeBooks;

  /// By all threads: the block's end. `close(faulted)` is called by all threads of the closer, if there is one.
  template <class Close>
  __device__ void end(const Close& close) {
    const int source = static_cast<int>(threadIdx.x);
    if (call_.ctx.mask_late_peers) __syncthreads();  // the last warp may have lost one
    if (source < topo_.world && heard(source) == Heard::refused) board_.unusual = 1;
    if (source < topo_.world && is_lost(source)) tell_lost(source);
    __syncthreads();
    const bool unusual = board_.unusual != 0 || is_broken();
    const bool closes = unusual || (site_.ticket != 0 && blockIdx.x == 0);
    DecodeState& state = *site_.decode;
    if (is_last_block() && threadIdx.x == 0 && decode_.receives() && !is_broken()) owe_credits();
    if (threadIdx.x == 0) {
      if (unusual) store_gpu(&state.unusual, 1);
      if (closes) board_.is_closer = atomicCAS(&state.closer, 0u, 1u) == 0;
      finish(&state.done[blockIdx.x], mark());
    }
    if (!closes) return;
    __syncthreads();
    if (board_.is_closer == 0) return;
    await_all();
    close(call_.ctx.ledger->is_faulted());
    if (threadIdx.x != 0) return;
    state.lost = 0;
    state.repeats = 0;
    store_gpu(&state.unusual, 0);
    store_gpu(&state.closer, 0);
  }

 private:
  __device__ void tell_lost(int source) const {
    board_.unusual = 1;
    atomicOr(reinterpret_cast<unsigned long long*>(&site_.decode->lost), 1ull << source);
  }
  __device__ static void store_gpu(uint32_t* word, uint32_t value) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
  }
  /// After all that the block did.
  __device__ static void finish(uint64_t* word, uint64_t value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
  }
  /// Unlike that of any other launch since the reset.
  __device__ uint64_t mark() const { return board_.seq * 4 + decode_.phases; }

  /// All waits of the other blocks have deadlines, so this ends.
  __device__ void await_all() const {
    const uint64_t deadline = port_.now() + site_.timeout_ns;
#pragma unroll 1
    for (int block = threadIdx.x; block < static_cast<int>(gridDim.x); block += kDecodeBlock) {
      uint64_t seen = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(&site_.decode->done[block]) : "memory");
      } while (seen != mark() && port_.now() < deadline);
    }
    __syncthreads();
  }
};

}  // namespace heddle
