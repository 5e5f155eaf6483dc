// What ranks of a TCP group say to one another once they know each other: a kind, a length, that many bytes.
#pragma once

#include "bootstrap/bootstrap.hpp"

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>

#include <cstdint>

namespace heddle {

enum class FrameKind : std::uint32_t {
  contribution,  // peer: {operation, bytes} of a call
  gathered,      // rank 0: everyone's bytes, by rank
  failed,        // rank 0: {error code, text} to be thrown by all
  gave_up        // peer: waited long enough; who is missing?
};

struct Frame {
  FrameKind kind;
  Bytes body;
};

// What one rank may contribute to a call.
inline constexpr std::uint64_t kMaxContribution = std::uint64_t{16} << 20;
// Room for the lengths and the operation's name beside it.
inline constexpr std::uint64_t kFrameSlack = 4096;

/// Throws asio::system_error when the connection ends, Error{mismatch} if the frame is longer than `limit`; nothing is
/// allocated for it then.
asio::awaitable<Frame> read_frame(asio::ip::tcp::socket&, std::uint64_t limit);

/// `frame` must live until it is done.
asio::awaitable<void> write_frame(asio::ip::tcp::socket&, const Frame& frame);

}  // namespace heddle
