#include "bootstrap/tcp_leaf.hpp"

#include <asio/buffer.hpp>
#include <asio/co_spawn.hpp>
#include <asio/connect.hpp>
#include <asio/detached.hpp>
#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>

#include <unistd.h>

namespace heddle {
namespace {

using namespace std::chrono_literals;
using asio::use_awaitable;

// Between two tries to reach rank 0, which may not have started yet.
constexpr auto kRetry = 20ms;
// How long rank 0 has to tell who is missing, once we stop waiting.
constexpr auto kLastWord = 1s;

auto from_now(std::chrono::nanoseconds span) { return std::chrono::steady_clock::now() + span; }

std::uint16_t port_of(const TcpGroup& group) { return group.port != 0 ? group.port : group.listener.port; }

}  // namespace

Endpoints resolve(asio::io_context& context, const std::string& host, std::uint16_t port) {
  asio::error_code not_numeric;
  const auto address = asio::ip::make_address(host, not_numeric);
  if (!not_numeric) return {{address, port}};
  Endpoints endpoints;
  for (const auto& entry : asio::ip::tcp::resolver(context).resolve(host, std::to_string(port))) {
    endpoints.push_back(entry.endpoint());
  }
  return endpoints;
}

TcpLeaf::TcpLeaf(const TcpGroup& group)
    : rank_(group.rank), size_(group.size), deadline_(group.deadline), socket_(loop_.context()) {
  // Inherited by a fork: left open, it would keep late peers waiting for a rank 0 that is gone.
  if (group.listener.descriptor >= 0) ::close(group.listener.descriptor);
  join(group);
  barrier("join");
}

void TcpLeaf::join(const TcpGroup& group) {
  asio::co_spawn(loop_.context(), enter(group, resolve(loop_.context(), group.host, port_of(group))), asio::detached);
  const bool in_time = loop_.run_until(from_now(deadline_), [&] { return is_in_ || failure_; });
  if (failure_) throw *failure_;
  if (in_time) return;
  fail(ErrorCode::timeout, "join: rank {} waited {} ms for rank 0 at {}:{}{}", rank_, deadline_.count() / 1'000'000,
       group.host, port_of(group), trouble_.empty() ? "" : ": " + trouble_);
}

asio::awaitable<void> TcpLeaf::enter(const TcpGroup& group, Endpoints endpoints) {
  try {
    const Challenge challenge = co_await knock(std::move(endpoints));
    const Claim claim{group.rank, group.size};
    const Answer answer = make_answer(challenge, claim, group.secret);
    co_await asio::async_write(socket_, asio::buffer(&answer, sizeof answer), use_awaitable);
    Verdict verdict;
    co_await asio::async_read(socket_, asio::buffer(&verdict, sizeof verdict), use_awaitable);
    check_verdict(challenge, answer, verdict, group.secret);
    socket_.set_option(asio::ip::tcp::no_delay(true));
    is_in_ = true;
  } catch (const Error& error) {
    failure_ = error;
  } catch (const std::exception& error) {
    failure_.emplace(ErrorCode::destroyed,
                     fmt::format("join: rank 0 ended the handshake of rank {}: {}", rank_, error.what()));
  }
}

// Until somebody there says its first words.
asio::awaitable<Challenge> TcpLeaf::knock(Endpoints endpoints) {
  asio::steady_timer pause(loop_.context());
  for (;;) {
    asio::error_code error;
    socket_ = asio::ip::tcp::socket(loop_.context());
    co_await asio::async_connect(socket_, endpoints, asio::redirect_error(use_awaitable, error));
    Challenge challenge;
    if (!error) {
      const auto buffer = asio::buffer(&challenge, sizeof challenge);
      co_await asio::async_read(socket_, buffer, asio::redirect_error(use_awaitable, error));
    }
    if (!error) co_return challenge;
    trouble_ = error.message();
    pause.expires_after(kRetry);
    co_await pause.async_wait(use_awaitable);
  }
}

std::vector<Bytes> TcpLeaf::exchange(std::string_view operation, std::span<const std::byte> mine) {
  HEDDLE_CHECK(mine.size() <= kMaxContribution, "{}: rank {} contributes {} bytes, at most {} are allowed", operation,
               rank_, mine.size(), kMaxContribution);
  ++round_;
  reply_.reset();
  asio::co_spawn(loop_.context(), write(pack(Contribution{std::string(operation), {mine.begin(), mine.end()}})),
                 asio::detached);
  asio::co_spawn(loop_.context(), read(), asio::detached);
  const auto answered = [&] { return reply_ || failure_; };
  if (!loop_.run_until(from_now(deadline_), answered)) {
    ask_who_is_missing();
    loop_.run_until(from_now(kLastWord), answered);
  }
  if (failure_) fail(failure_->code(), "{}: {}", operation, failure_->what());
  if (!reply_) {
    fail(ErrorCode::timeout, "{}: rank {} waited {} ms for rank 0, which did not come", operation, rank_,
         deadline_.count() / 1'000'000);
  }
  if (reply_->kind == FrameKind::failed) throw unpack_failure(*reply_);
  return unpack_gathered(*reply_, size_);
}

void TcpLeaf::ask_who_is_missing() {
  if (!is_writing_) asio::co_spawn(loop_.context(), write(pack_gave_up(round_)), asio::detached);
}

asio::awaitable<void> TcpLeaf::write(Frame frame) {
  is_writing_ = true;
  try {
    co_await write_frame(socket_, frame);
  } catch (const std::exception&) {
    // read() sees the same end; rank 0's last words may still be in it.
  }
  is_writing_ = false;
}

asio::awaitable<void> TcpLeaf::read() {
  try {
    reply_ = co_await read_frame(socket_, longest_gathered(size_));
  } catch (const Error& error) {
    failure_ = error;
  } catch (const std::exception& error) {
    failure_.emplace(ErrorCode::destroyed, fmt::format("rank 0 died or left the group ({})", error.what()));
  }
}

}  // namespace heddle
