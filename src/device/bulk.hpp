// Rows that pass through a block's memory by bulk copies: one lane asks for many bytes, and no register holds them. On a
// GPU of compute capability 9.0 and later; elsewhere these functions are for tests.
//   a lane   load() into block memory, counted by a gate; store() from there; commit() ends a group of the lane's stores
//   lanes    copy_word() single words into block memory; commit_words() ends a group of them
// Addresses and lengths of load() and store() are multiples of 16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/macros.hpp"

#ifdef __CUDACC__
#include "device/bulk.cuh"
#endif

namespace heddle {

/// Opens when the bytes that were asked for are there. In block memory.
struct BulkGate {
  uint64_t word = 0;
};

/// Whether a place or a length is one of load() and store().
HEDDLE_HD inline bool is_bulk(int64_t bytes) { return bytes % 16 == 0; }
HEDDLE_HD inline bool is_bulk(const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

namespace bulk {

#if HEDDLE_ON_DEVICE && __CUDA_ARCH__ >= 900

HEDDLE_HD inline void open_gate(BulkGate* gate) { gate_init(&gate->word); }
/// By one lane: so many bytes will come by load().
HEDDLE_HD inline void expect(BulkGate* gate, uint32_t bytes) { gate_expect(&gate->word, bytes); }
HEDDLE_HD inline void load(BulkGate* gate, void* to, const void* from, uint32_t bytes) {
  load_bulk(to, from, bytes, &gate->word);
}
/// All lanes: whether the gate has opened for the `turn`-th time, 0 or 1, of every other.
HEDDLE_HD inline bool is_open(const BulkGate* gate, uint32_t turn) { return gate_passed(&gate->word, turn); }
HEDDLE_HD inline void store(void* to, const void* from, uint32_t bytes) { store_bulk(to, from, bytes); }
HEDDLE_HD inline void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// All stores, or all but those of the last group, have been made; reads: have been read from block memory.
HEDDLE_HD inline void wait_stores_but_one() { asm volatile("cp.async.bulk.wait_group 1;" ::: "memory"); }
HEDDLE_HD inline void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
HEDDLE_HD inline void wait_reads() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/// What the lane has stored into block memory, a store() shall see.
HEDDLE_HD inline void fence_block() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// What the lane has acquired, a load() shall see. (One fence for both kinds of memory would wait for all stores of the lane.)
HEDDLE_HD inline void fence_device() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

HEDDLE_HD inline void copy_word(void* to, const void* from) { word_async(to, from); }
HEDDLE_HD inline void commit_words() { asm volatile("cp.async.commit_group;" ::: "memory"); }
HEDDLE_HD inline void wait_words_but_one() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
HEDDLE_HD inline void wait_words() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

#else

HEDDLE_HD inline void open_gate(BulkGate*) {}
HEDDLE_HD inline void expect(BulkGate*, uint32_t) {}
HEDDLE_HD inline void load(BulkGate*, void* to, const void* from, uint32_t bytes) { memcpy(to, from, bytes); }
HEDDLE_HD inline bool is_open(const BulkGate*, uint32_t) { return true; }
HEDDLE_HD inline void store(void* to, const void* from, uint32_t bytes) { memcpy(to, from, bytes); }
HEDDLE_HD inline void commit() {}
HEDDLE_HD inline void wait_stores_but_one() {}
HEDDLE_HD inline void wait_stores() {}
HEDDLE_HD inline void wait_reads() {}
HEDDLE_HD inline void fence_block() {}
HEDDLE_HD inline void fence_device() {}
HEDDLE_HD inline void copy_word(void* to, const void* from) { memcpy(to, from, sizeof(uint32_t)); }
HEDDLE_HD inline void commit_words() {}
HEDDLE_HD inline void wait_words_but_one() {}
HEDDLE_HD inline void wait_words() {}

#endif

}  // namespace bulk
}  // namespace heddle
