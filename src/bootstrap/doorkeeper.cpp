#include "bootstrap/doorkeeper.hpp"

#include "base/error.hpp"
#include "base/log.hpp"

#include <asio/buffer.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>

namespace heddle {
namespace {

using namespace std::chrono_literals;
using asio::use_awaitable;

// A peer answers within a round trip and a hash; a silent stranger is not kept longer.
constexpr auto kAnswerTime = 5s;
// When descriptors run out, accepting fails at once; do not spin on it.
constexpr auto kAcceptRetry = 50ms;

template <class T>
auto bytes_of(T& value) {
  return asio::buffer(&value, sizeof value);
}

asio::ip::tcp protocol_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length);
  return address.ss_family == AF_INET6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4();
}

// Closes the socket of a handshake that takes too long. The timer may fire after the handshake's end, so it holds no
// more than a weak pointer.
void close_after(asio::steady_timer& timer, const std::shared_ptr<Doorkeeper::Socket>& socket) {
  timer.expires_after(kAnswerTime);
  timer.async_wait([weak = std::weak_ptr(socket)](const asio::error_code& error) {
    asio::error_code ignored;
    if (const auto held = weak.lock(); held && !error) held->close(ignored);
  });
}

}  // namespace

Doorkeeper::Doorkeeper(asio::io_context& context, TcpListener listener, Group group)
    : context_(context), acceptor_(context, protocol_of(listener.descriptor), listener.descriptor),
      group_(std::move(group)) {
  asio::co_spawn(context_, accept(), asio::detached);
}

asio::awaitable<void> Doorkeeper::accept() {
  while (acceptor_.is_open()) {
    asio::error_code error;
    Socket socket = co_await acceptor_.async_accept(asio::redirect_error(use_awaitable, error));
    if (!acceptor_.is_open()) break;
    if (error) {
      asio::steady_timer pause(context_, kAcceptRetry);
      co_await pause.async_wait(use_awaitable);
      continue;
    }
    if (admitting_ == kMaxAdmitting) continue;
    ++admitting_;
    auto held = std::make_shared<Socket>(std::move(socket));
    asio::co_spawn(context_, serve(held), asio::detached);
  }
}

asio::awaitable<void> Doorkeeper::serve(std::shared_ptr<Socket> socket) {
  asio::steady_timer timer(context_);
  close_after(timer, socket);
  try {
    co_await shake_hands(*socket);
  } catch (const std::exception& error) {
    if (refused_++ == 0) log_warn("a connection to rank 0 was dropped in its handshake: {}", error.what());
  }
  --admitting_;
}

asio::awaitable<void> Doorkeeper::shake_hands(Socket& socket) {
  const Challenge challenge = make_challenge();
  co_await asio::async_write(socket, bytes_of(challenge), use_awaitable);
  Answer answer;
  co_await asio::async_read(socket, bytes_of(answer), use_awaitable);
  Admission admission = judge(challenge, answer, group_.size, group_.secret);
  if (admission == Admission::admitted && !group_.is_free(answer.rank)) admission = Admission::wrong_rank;
  const Verdict verdict = make_verdict(challenge, answer, admission, group_.secret);
  co_await asio::async_write(socket, bytes_of(verdict), use_awaitable);
  if (admission != Admission::admitted) fail(ErrorCode::mismatch, "{}", name_of(admission));
  // Another with the same rank may have come meanwhile.
  if (!group_.is_free(answer.rank)) fail(ErrorCode::mismatch, "rank {} is taken", answer.rank);
  socket.set_option(asio::ip::tcp::no_delay(true));
  group_.join(answer.rank, std::move(socket));
}

}  // namespace heddle
