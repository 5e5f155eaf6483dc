// Self-announcing words: 16 bytes, written and read as two halves of 64 bits, complemented, so that memory that was never
// written is empty. A half whose last element is never all ones is never empty once it is there. Nothing else is ordered.
#pragma once

#include <cstdint>

#include "protocol/await.hpp"
#include "protocol/call_header.hpp"

namespace heddle {

struct Word {
  uint64_t low = 0;
  uint64_t high = 0;

  __device__ bool is_here() const { return low != 0 && high != 0; }
  __device__ uint4 data() const {
    return make_uint4(~static_cast<uint32_t>(low), ~static_cast<uint32_t>(low >> 32), ~static_cast<uint32_t>(high),
                      ~static_cast<uint32_t>(high >> 32));
  }
};

__device__ inline Word load_word(const std::byte* at) {
  Word word;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(word.low), "=l"(word.high) : "l"(at) : "memory");
  return word;
}

__device__ inline void store_word(std::byte* at, const Word& word) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(word.low), "l"(word.high) : "memory");
}

__device__ inline void send_word(std::byte* at, const uint4& data) {
  const uint64_t low = uint64_t{data.y} << 32 | data.x;
  const uint64_t high = uint64_t{data.w} << 32 | data.z;
  store_word(at, {~low, ~high});
}

/// To a place that is not aligned. Apart: it is rare, and takes registers.
__device__ __noinline__ inline void store_odd(std::byte* to, uint4 left) {
#pragma unroll 1
  for (int i = 0; i < 16; ++i) {
    to[i] = static_cast<std::byte>(left.x);
    left = make_uint4(left.x >> 8 | left.y << 24, left.y >> 8 | left.z << 24, left.z >> 8 | left.w << 24, left.w >> 8);
  }
}

__device__ inline uint64_t load_tagged(const std::byte* at) { return load_relaxed(reinterpret_cast<const uint64_t*>(at)); }
__device__ inline void store_tagged(std::byte* at, uint64_t word) { store_relaxed(reinterpret_cast<uint64_t*>(at), word); }

/// How a wait for a source goes on.
enum class Heard : uint8_t { nothing, masked, refused, fault };

/// What a wait for words needs to know of its call. The call's state may not be written yet.
struct WordWait {
  uint64_t seq = 0;
  uint64_t hash = 0;
  uint64_t deadline = 0;
  int32_t lane = 0;
};

/// What await() of protocol/ looks at between its looks at a counter; `here()` looks for the words again, since what the
/// source sent before a sign counts.
template <class Here>
__device__ Heard look_around(const DirectPort& port, const Call& call, const WordWait& wait, int source, const Here& here) {
  const Context& ctx = call.ctx;
  const bool is_open = ctx.ledger->is_open(source);
  const bool closed = load_acquire(&cells_of(port.local(), ctx, source).closed) != 0;
  auto reason = FaultCode::none;
  if (is_open && !closed) {
    if (ctx.ledger->is_faulted()) return Heard::fault;
    reason = look_out(port, ctx, {.peer = source, .awaited = Awaited::rows, .wanted = wait.seq, .deadline = wait.deadline});
    if (reason == FaultCode::none) return Heard::nothing;
  }
  if (here()) return Heard::nothing;
  const bool is_late = reason == FaultCode::timeout || reason == FaultCode::peer_destroyed;
  if (reason == FaultCode::none || (is_late && ctx.mask_late_peers)) {
    if (is_open) close_pair(port, ctx, source);
    return Heard::masked;
  }
  claim_fault(ctx, {.code = reason, .awaited = Awaited::rows, .kind = call.shape.kind, .peer = source, .seq = wait.seq,
                    .wanted = wait.seq, .seen = 0, .hash = wait.hash});
  return Heard::fault;
}

/// Words to look for again: by value, as a look at the stack would cost as much as one at the words. Null: none.
struct Wanted {
  const std::byte* words[2] = {};
  const std::byte* tagged[2] = {};
  uint64_t seq = 0;

  __device__ bool operator()() const {
    for (const std::byte* at : words)
      if (at != nullptr && !load_word(at).is_here()) return false;
    for (const std::byte* at : tagged)
      if (at != nullptr && !has_tag(load_tagged(at), seq)) return false;
    return true;
  }
};

/// One look at all that may end a wait for words of a source. Its header says if it refused, or is in another call.
__device__ __noinline__ inline Heard look_at_source(const DirectPort& port, const Call& call, const WordWait& wait, int source,
                                                    Wanted here) {
  if (load_acquire(&call.state->seq) == wait.seq) {
    const auto* counter =
        reinterpret_cast<const uint64_t*>(port.local() + counter_at(call, source, Awaited::header));
    if (load_acquire(counter) >= call.state->headers_wanted) {
      const Header& header = header_from(port.local(), call, source);
      const bool refused = header.refusal.is_set();
      const bool same = header.seq == wait.seq && header.incarnation == call.ctx.ledger->incarnation;
      if (same && refused) return Heard::refused;
      if (!same || header.hash != wait.hash) {
        claim_mismatch(call, source, header);
        return Heard::fault;
      }
    } else if (!call.ctx.ledger->is_faulted() && finds_header_elsewhere(port.local(), call, source)) {
      return Heard::fault;
    }
  }
  return look_around(port, call, wait, source, here);
}

/// The same for one tagged word, by one thread.
__device__ __noinline__ inline Heard look_for_tagged(const DirectPort& port, const Call& call, const WordWait& wait, int source,
                                                     const std::byte* at) {
  return look_at_source(port, call, wait, source, {.words = {}, .tagged = {at}, .seq = wait.seq});
}

/// Polls between two looks around, which take some 5 us.
inline constexpr int kPollsPerLook = 64;

/// All lanes of a warp, which wait for the same source: until poll() is true for each. Every lane gets the same answer:
/// nothing = all is here.
template <class Poll>
__device__ Heard await_words(const DirectPort& port, const Call& call, const WordWait& wait, int source,
                             const Wanted& wanted, const Poll& poll) {
  for (int attempt = 1;; ++attempt) {
    const bool here = poll();
    const unsigned missing = __ballot_sync(0xFFFFFFFFu, !here);
    if (missing == 0) return Heard::nothing;
    if (attempt % kPollsPerLook != 0) continue;
    const int speaker = __ffs(static_cast<int>(missing)) - 1;
    auto heard = Heard::nothing;
    if (static_cast<int>(threadIdx.x & 31) == speaker) heard = look_at_source(port, call, wait, source, wanted);
    heard = static_cast<Heard>(__shfl_sync(0xFFFFFFFFu, static_cast<int>(heard), speaker));
    if (heard != Heard::nothing) return heard;
  }
}

}  // namespace heddle
