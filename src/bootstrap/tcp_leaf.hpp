// Any rank but 0 of a TCP group: contributes to a call, then waits for what rank 0 gathered.
#pragma once

#include "bootstrap/event_loop.hpp"
#include "bootstrap/handshake.hpp"
#include "bootstrap/messages.hpp"

#include <heddle/ranks.hpp>

namespace heddle {

using Endpoints = std::vector<asio::ip::tcp::endpoint>;

/// Numeric addresses and names. A name is looked up here and now, without a deadline. Throws asio::system_error.
Endpoints resolve(asio::io_context&, const std::string& host, std::uint16_t port);

class TcpLeaf final : public Bootstrap {
 public:
  /// Returns when all peers have joined. Tries again while nobody listens.
  explicit TcpLeaf(const TcpGroup&);

  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  std::vector<Bytes> exchange(std::string_view operation, std::span<const std::byte> mine) override;

  void join(const TcpGroup&);
  asio::awaitable<void> enter(const TcpGroup&, Endpoints);
  asio::awaitable<Challenge> knock(Endpoints);
  asio::awaitable<void> write(Frame);
  asio::awaitable<void> read();
  void ask_who_is_missing();

  const int rank_;
  const int size_;
  const std::chrono::nanoseconds deadline_;
  std::uint64_t round_ = 0;
  bool is_writing_ = false;
  bool is_in_ = false;
  std::string trouble_;  // why rank 0 was not reached at the last try
  std::optional<Frame> reply_;
  std::optional<Error> failure_;
  EventLoop loop_;  // outlives the socket
  asio::ip::tcp::socket socket_;
};

}  // namespace heddle
