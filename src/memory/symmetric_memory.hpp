// One window of equal size on every rank, each mapped by every near rank: what puts are stored into.
#pragma once

#include "device/peer_view.hpp"
#include "memory/mapping.hpp"

#include <chrono>
#include <span>
#include <vector>

namespace heddle {

class Bootstrap;

/// Owns this rank's window and its mappings of the peers' windows. Windows are page-aligned and start zero-filled, on
/// which the protocol relies. Destroying is local: peers that have a window mapped keep its memory alive.
/// Reading the accessors is safe from any thread.
class SymmetricMemory {
 public:
  /// `windows` by rank, at most kMaxRanks; nullptr = far.
  SymmetricMemory(int rank, std::size_t bytes, std::vector<Mapping> windows);
  SymmetricMemory(SymmetricMemory&&) = default;
  SymmetricMemory& operator=(SymmetricMemory&&) = default;

  std::byte* local() const { return peer(rank_); }
  /// nullptr = far, not a member, or no such rank.
  std::byte* peer(int rank) const;
  std::size_t bytes() const { return bytes_; }
  int rank() const { return rank_; }
  PeerView view() const;

 private:
  int rank_;
  std::size_t bytes_;
  std::vector<Mapping> windows_;
};

// The factories below are collective over the bootstrap's ranks, zero-fill, and throw on all ranks or on none:
// Error{mismatch} if ranks ask for different sizes, Error{timeout} or Error{destroyed} that names who is missing.
//   members   members[i] is the number by which the buffer knows the bootstrap's rank i, ascending; others are left
//             out. Empty: the bootstrap's own numbers. So a reset can map again, over a bootstrap of its members.

/// A world of one rank.
SymmetricMemory make_local(std::size_t bytes);

/// Ranks are threads of this process; Error{usage} if they are not. All its waits are the bootstrap's.
SymmetricMemory make_heap(Bootstrap&, std::size_t bytes, std::chrono::nanoseconds deadline,
                          std::span<const int> members = {});

/// Ranks are processes, or threads. Ranks of other hosts are far (host_identity). `deadline` bounds the handover of the
/// windows, the bootstrap's own deadline the rest. No descriptor, file or name stays behind.
SymmetricMemory make_shm(Bootstrap&, std::size_t bytes, std::chrono::nanoseconds deadline,
                         std::span<const int> members = {});

}  // namespace heddle
