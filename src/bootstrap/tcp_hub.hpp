// Rank 0 of a TCP group: gathers what the peers contribute to a call, sends everyone everything.
#pragma once

#include "bootstrap/doorkeeper.hpp"
#include "bootstrap/event_loop.hpp"
#include "bootstrap/messages.hpp"

namespace heddle {

class TcpHub final : public Bootstrap {
 public:
  /// Returns when all peers have joined.
  explicit TcpHub(const TcpGroup&);

  int rank() const override { return 0; }
  int size() const override { return static_cast<int>(members_.size()); }

 private:
  using Socket = Doorkeeper::Socket;

  struct Member {
    std::optional<Socket> socket;  // none: not here yet, or rank 0
    std::optional<Contribution> contribution;
    bool is_writing = false;
  };

  std::vector<Bytes> exchange(std::string_view operation, std::span<const std::byte> mine) override;

  void admit(int rank, Socket);
  asio::awaitable<void> listen_to(int rank);
  void take(int rank, const Frame&);
  void gather();
  std::vector<Bytes> collect();
  void send_to_all(Frame, std::chrono::nanoseconds patience);
  asio::awaitable<void> send_to(int rank, std::shared_ptr<const Frame>);

  std::string missing_text(int waiting) const;
  std::vector<int> missing() const;
  std::vector<int> unserved() const;
  void break_up(ErrorCode, const std::string& text);
  [[noreturn]] void fail_all();

  const std::chrono::nanoseconds deadline_;
  std::string operation_;
  std::uint64_t round_ = 0;
  std::optional<Error> failure_;  // once set, this call or the next one ends with it
  std::optional<int> impatient_;  // a peer that waited for this round longer than it wants to
  EventLoop loop_;                // outlives the sockets below
  std::vector<Member> members_;
  Doorkeeper doorkeeper_;
};

}  // namespace heddle
