// What ranks tell each other in a decode pump beside rows: notes of counts, with a check of the call; and what is known of a
// source that sends none.
#pragma once

#include <cstdint>

#include "cuda/decode_block.cuh"
#include "protocol/call_header.hpp"

namespace heddle {

/// A counter and the total that it is waited for to show.
struct Counter {
  const std::byte* at;
  uint64_t wanted;
};

/// By one thread: waits for the source's header, which differs from this rank's, and claims the fault.
__device__ __noinline__ inline void claim_other_call(const DirectPort& port, const Call& call, const WordWait& wait, int source,
                                                     Counter headers) {
  const std::byte* never = reinterpret_cast<const std::byte*>(&call.ctx.ledger->told);
  while (look_at_source(port, call, wait, source, {.words = {}, .tagged = {never}, .seq = ~wait.seq}) == Heard::nothing) {
    if (load_acquire(&call.state->seq) != wait.seq) continue;
    if (load_acquire(reinterpret_cast<const uint64_t*>(headers.at)) < headers.wanted) continue;
    return claim_mismatch(call, source, header_from(port.local(), call, source));
  }
}

class DecodeNotes : protected DecodeBlock {
 protected:
  using DecodeBlock::DecodeBlock;

  __device__ bool is_broken() const { return *const_cast<volatile uint32_t*>(&board_.broken) != 0; }
  __device__ void note_fault() const { *const_cast<volatile uint32_t*>(&board_.broken) = 1; }
  __device__ Heard heard(int source) const {
    return static_cast<Heard>(*const_cast<volatile uint8_t*>(&board_.heard[source]));
  }
  __device__ bool speaks(int source) const { return board_.live[source] != 0 && heard(source) == Heard::nothing; }

  /// Notes why a source sends nothing, if it does not.
  __device__ void note(int source, Heard heard) const {
    if (heard == Heard::nothing) return;
    if (heard == Heard::fault) return note_fault();
    *const_cast<volatile uint8_t*>(&board_.heard[source]) = static_cast<uint8_t>(heard);
    if (heard == Heard::masked && call_.ctx.mask_late_peers) note_lost(source);
  }

  /// The source was masked in this call, and may have been counted. Its part is taken back when all blocks have ended.
  __device__ void note_lost(int source) const { *const_cast<volatile uint8_t*>(&board_.lost[source]) = 1; }
  __device__ bool is_lost(int source) const { return *const_cast<volatile uint8_t*>(&board_.lost[source]) != 0; }

  /// Where the words lie that `source` writes at `peer` in this call.
  __device__ std::byte* words_at(int peer, int source) const {
    return reinterpret_cast<std::byte*>(port_.word_at(peer, decode_.words[board_.lane] + source * decode_.pitch));
  }
  __device__ std::byte* words_from(int source) const {
    return port_.local() + decode_.words[board_.lane] + source * decode_.pitch;
  }

  /// A source whose note came sends no rows: it has left. By all lanes of a warp.
  __device__ void note_loss(int source, Heard heard) const {
    if (heard == Heard::masked && call_.ctx.mask_late_peers) return note_lost(source);
    note_fault();
    if (heard == Heard::fault || lane() != 0) return;
    claim_fault(call_.ctx, {.code = FaultCode::peer_fault, .awaited = Awaited::rows, .kind = call_.shape.kind,
                            .peer = source, .seq = wait_.seq, .wanted = wait_.seq, .hash = wait_.hash});
  }

  /// The words of the note, by one thread.
  __device__ void put_note_to(int peer, int32_t count, int32_t tokens) const {
    std::byte* note = words_at(peer, topo_.rank) + region_.note;
    const auto counts = static_cast<uint32_t>(count) | static_cast<uint32_t>(tokens) << 16;
    store_word(note, {tagged(counts, board_.seq), tagged(check_of(decode_.hash, board_.incarnation), board_.seq)});
  }

  /// By one thread: waits for one tagged word of a source; true if it came.
  __device__ bool await_tagged(int source, const std::byte* at, uint64_t& word) const {
    const auto poll = [&] {
      word = load_tagged(at);
      return has_tag(word, wait_.seq);
    };
    for (int attempt = 1; !poll(); ++attempt) {
      if (attempt % kPollsPerLook != 0) continue;
      if (is_broken() || heard(source) != Heard::nothing) return false;
      const Heard heard = look_for_tagged(port_, call_, wait_, source, at);
      note(source, heard);
      if (heard != Heard::nothing) return false;
    }
    return true;
  }

  /// By one thread: the note's counts, checked. False: there are none.
  __device__ bool read_note(int source, int32_t& count, int32_t& tokens) const {
    const std::byte* note = words_from(source) + region_.note;
    const Word both = load_word(note);
    uint64_t counts = both.low, check = both.high;
    if (!has_tag(counts, wait_.seq) && !await_tagged(source, note, counts)) return false;
    if (!has_tag(check, wait_.seq) && !await_tagged(source, note + sizeof(uint64_t), check)) return false;
    if (static_cast<uint32_t>(check) != check_of(decode_.hash, board_.incarnation)) {
      note_mismatch(source);
      return false;
    }
    count = static_cast<int32_t>(counts & 0xFFFF);
    tokens = static_cast<int32_t>(counts >> 16 & 0xFFFF);
    return true;
  }

  /// The last block's waits are the call's.
  __device__ bool read_note_timed(int source, int32_t& count, int32_t& tokens) const {
    if (call_.waits == nullptr || !is_last_block()) return read_note(source, count, tokens);
    return read_note_by_clock(source, count, tokens);
  }
  __device__ bool read_note_by_clock(int source, int32_t& count, int32_t& tokens) const {
    const WaitClock clock(port_, call_, source);
    const bool came = read_note(source, count, tokens);
    clock.stop();
    return came;
  }

  /// The source speaks of another call; its header says of which.
  __device__ void note_mismatch(int source) const {
    const int64_t counter = cell_of(source, offsetof(Cells, headers));
    claim_other_call(port_, call_, wait_, source, {port_.local() + counter, board_.lane_calls + 1});
    note_fault();
  }

  __device__ int64_t cell_of(int source, size_t field) const {
    return call_.ctx.window.cells(source) + static_cast<int64_t>(field) +
           (int64_t{kind_} * kLanes + board_.lane) * int64_t{sizeof(uint64_t)};
  }
};

}  // namespace heddle
