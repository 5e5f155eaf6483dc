// The bodies of the frames of a TCP group.
#pragma once

#include "base/error.hpp"
#include "bootstrap/frame.hpp"

namespace heddle {

struct Contribution {
  std::string operation;
  Bytes bytes;
};

Frame pack(const Contribution&);
Frame pack(const std::vector<Bytes>& gathered);
Frame pack(const Error& failure);
/// `round` counts a rank's calls; it tells a late complaint from a current one.
Frame pack_gave_up(std::uint64_t round);

// Each throws Error{mismatch} if the frame is of another kind or does not hold what it should.
Contribution unpack_contribution(const Frame&);
std::vector<Bytes> unpack_gathered(const Frame&, int size);
Error unpack_failure(const Frame&);
std::uint64_t unpack_gave_up(const Frame&);

/// The longest frame that a group of this size sends.
std::uint64_t longest_gathered(int size);

}  // namespace heddle
