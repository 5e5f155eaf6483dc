// Lets peers into a TCP group and keeps everyone else out, however many knock and whatever they say.
#pragma once

#include "bootstrap/handshake.hpp"

#include <heddle/ranks.hpp>

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>

namespace heddle {

/// Works while its context runs. Must outlive the context's last run.
class Doorkeeper {
 public:
  using Socket = asio::ip::tcp::socket;

  struct Group {
    int size;
    std::string secret;
    std::function<bool(int rank)> is_free;
    std::function<void(int rank, Socket)> join;  // for a free rank that proved itself
  };

  Doorkeeper(asio::io_context&, TcpListener, Group);

  /// Connections that were turned away.
  int refused() const { return refused_; }
  /// Nobody can join from now on.
  void close() { acceptor_.close(); }

 private:
  // Who is let in to say its answer; more are closed at once and may try again.
  static constexpr int kMaxAdmitting = 256;

  asio::awaitable<void> accept();
  asio::awaitable<void> serve(std::shared_ptr<Socket>);
  asio::awaitable<void> shake_hands(Socket&);

  asio::io_context& context_;
  asio::ip::tcp::acceptor acceptor_;
  Group group_;
  int admitting_ = 0;
  int refused_ = 0;
};

}  // namespace heddle
