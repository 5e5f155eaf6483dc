// What a rank remembers between calls (I12: it lives with the data and is advanced by the steps), and what one call
// remembers between its send and its receive.
#pragma once

#include <cstdint>

#include "device/atomic.hpp"
#include "layout/window.hpp"

namespace heddle {

enum class Mask : uint64_t { open = 0, suspect = 1, removed = 2 };

enum class FaultCode : uint32_t {
  none,
  timeout,         // a counter did not come in time
  mismatch,        // the peer makes another call, or the same with other arguments
  peer_fault,      // a peer left the call by fault
  peer_destroyed,  // a peer destroyed its buffer
  unreceived,      // a send finds its lane's previous call not received (I6)
  interrupted,     // this rank's host broke the wait off
  unready          // the rows of a combine were not made in time (signals.hpp)
};

enum class Awaited : uint32_t { credit, header, rows, offer, reset };

/// Why this rank left a call: its own wait (I9).
struct Fault {
  FaultCode code = FaultCode::none;
  Awaited awaited = Awaited::header;
  Kind kind = Kind::dispatch;
  int32_t peer = -1;
  uint64_t seq = 0;
  uint64_t wanted = 0;
  uint64_t seen = 0;
  uint64_t hash = 0;
  uint32_t peer_kind = 0;  // of a mismatch
  uint64_t peer_hash = 0;
  int32_t word = -1;  // of signals
};

struct Ledger {
  uint64_t incarnation = 0;
  uint64_t cleared = 0;  // the incarnation that the cells were last cleared for
  uint64_t seq = 0;
  uint64_t calls[kKinds] = {};
  uint64_t lane_calls[kKinds][kLanes] = {};  // = headers that each open peer has sent or will send in the lane
  uint64_t unreceived[kKinds][kLanes] = {};  // seq of the send whose receive has not run; 0 = none
  uint64_t rounds_sent[kKinds][kLanes][kMaxRanks] = {};
  uint64_t rows_seen[kKinds][kLanes][kMaxRanks] = {};
  uint64_t credits_given[kKinds][kLanes][kMaxRanks] = {};
  uint64_t offers_seen[kLanes][kMaxRanks] = {};
  uint64_t mask[kMaxRanks] = {};   // a Mask; atomic
  uint64_t told[kMaxRanks] = {};   // what this rank's reset counter at the peer shows; never cleared
  uint64_t left_out[kMaxRanks] = {};  // how often the peer had gone on without this rank when they last met; never cleared
  uint64_t fault_claimed = 0;      // atomic; the first fault of a call is kept
  uint64_t interrupted = 0;        // atomic; the host wants the call in progress to end
  Fault fault;

  HEDDLE_HD bool is_open(int peer) const { return load_acquire(&mask[peer]) == static_cast<uint64_t>(Mask::open); }
  HEDDLE_HD bool is_faulted() const { return load_acquire(&fault_claimed) != 0; }
};

enum class SourceStatus : uint8_t { arrived = 0, masked = 1 };

/// One call in flight. Written by its send, read by its receive; lives in device memory.
struct CallState {
  uint64_t seq = 0;
  uint64_t headers_wanted = 0;
  int32_t lane = 0;
  int32_t refused_by = -1;  // the lowest rank whose header refuses the call
  Refusal refusal;
  uint64_t credits_before[kMaxRanks] = {};
  uint64_t rows_before[kMaxRanks] = {};
  int32_t rounds_to[kMaxRanks] = {};
  int32_t count[kMaxRanks] = {};   // rows from the source
  int32_t slots[kMaxRanks] = {};
  int32_t rounds[kMaxRanks] = {};
  int32_t tokens[kMaxRanks] = {};  // of the source's batch
  uint8_t status[kMaxRanks] = {};  // a SourceStatus
  uint8_t refused[kMaxRanks] = {};
  uint8_t counted[kMaxRanks] = {};  // it had arrived, unmasked and unrefused, when rows were laid out: a later mask moves none
  uint8_t offers[kMaxRanks] = {};      // the source takes part in offers in this call
  uint8_t direct_from[kMaxRanks] = {};  // its rows come straight into the output
  uint8_t direct_to[kMaxRanks] = {};
  uint8_t words_from[kMaxRanks] = {};  // its rows are self-announcing words, which the row counter does not count
  int32_t taken = 0;  // the source whose rows are placed next, where they are as they come
};

}  // namespace heddle
