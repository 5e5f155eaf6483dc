#include "bootstrap/tcp_hub.hpp"

#include "bootstrap/rank_list.hpp"

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>

#include <algorithm>

namespace heddle {
namespace {

// How long the bad news may take to reach those that still listen.
constexpr std::chrono::seconds kFarewell{1};

TcpListener listener_of(const TcpGroup& group) {
  return group.listener.descriptor >= 0 ? group.listener : tcp_listen(group.host, group.port);
}

}  // namespace

TcpHub::TcpHub(const TcpGroup& group)
    : deadline_(group.deadline), members_(static_cast<std::size_t>(group.size)),
      doorkeeper_(loop_.context(), listener_of(group),
                  {.size = group.size,
                   .secret = group.secret,
                   .is_free = [this](int rank) { return !members_[rank].socket; },
                   .join = [this](int rank, Socket socket) { admit(rank, std::move(socket)); }}) {
  // Joining is a call to which peers contribute as soon as they are in.
  barrier("join");
  doorkeeper_.close();
}

std::vector<Bytes> TcpHub::exchange(std::string_view operation, std::span<const std::byte> mine) {
  HEDDLE_CHECK(mine.size() <= kMaxContribution, "{}: rank 0 contributes {} bytes, at most {} are allowed", operation,
               mine.size(), kMaxContribution);
  operation_ = operation;
  ++round_;
  members_[0].contribution = {operation_, Bytes(mine.begin(), mine.end())};
  gather();
  std::vector<Bytes> all = collect();
  send_to_all(pack(all), deadline_);
  if (const auto late = unserved(); !late.empty()) {
    break_up(ErrorCode::timeout, fmt::format("{}: ranks {} did not read what was gathered within {} ms", operation_,
                                             rank_list(late), deadline_.count() / 1'000'000));
    fail_all();
  }
  return all;
}

void TcpHub::admit(int rank, Socket socket) {
  members_[rank].socket.emplace(std::move(socket));
  asio::co_spawn(loop_.context(), listen_to(rank), asio::detached);
}

// Always listening, so that a death is noticed at once and not when the peer is next waited for.
asio::awaitable<void> TcpHub::listen_to(int rank) {
  try {
    for (;;) take(rank, co_await read_frame(*members_[rank].socket, kMaxContribution + kFrameSlack));
  } catch (const Error& error) {
    break_up(error.code(),
             fmt::format("{}: rank {} sent what is not of this group: {}", operation_, rank, error.what()));
  } catch (const std::exception& error) {
    break_up(ErrorCode::destroyed,
             fmt::format("{}: rank {} died or left the group ({})", operation_, rank, error.what()));
  }
}

void TcpHub::take(int rank, const Frame& frame) {
  if (frame.kind == FrameKind::gave_up) {
    // A complaint about a round that has meanwhile been completed is void.
    if (unpack_gave_up(frame) == round_ && members_[rank].contribution) impatient_ = rank;
    return;
  }
  if (members_[rank].contribution) fail(ErrorCode::mismatch, "two contributions to one call");
  members_[rank].contribution = unpack_contribution(frame);
}

// Waits for all contributions; a round that got them stands, whatever else happened.
void TcpHub::gather() {
  const auto until = std::chrono::steady_clock::now() + deadline_;
  const auto settled = [&] { return missing().empty() || failure_ || impatient_; };
  const bool in_time = loop_.run_until(until, settled);
  // What has arrived but was not read yet is not missing.
  if (!missing().empty()) loop_.context().poll();
  if (missing().empty()) return;
  if (impatient_ || !in_time) break_up(ErrorCode::timeout, missing_text(impatient_.value_or(0)));
  fail_all();
}

std::vector<Bytes> TcpHub::collect() {
  std::vector<Bytes> all;
  for (int rank = 0; rank < size(); ++rank) {
    Contribution contribution = std::move(*members_[rank].contribution);
    members_[rank].contribution.reset();
    if (contribution.operation != operation_) {
      break_up(ErrorCode::mismatch,
               fmt::format("rank 0 calls '{}' while rank {} calls '{}'", operation_, rank, contribution.operation));
      fail_all();
    }
    all.push_back(std::move(contribution.bytes));
  }
  impatient_.reset();
  return all;
}

void TcpHub::send_to_all(Frame frame, std::chrono::nanoseconds patience) {
  const auto shared = std::make_shared<const Frame>(std::move(frame));
  for (int rank = 1; rank < size(); ++rank) {
    Member& member = members_[rank];
    if (!member.socket || member.is_writing) continue;
    member.is_writing = true;
    asio::co_spawn(loop_.context(), send_to(rank, shared), asio::detached);
  }
  loop_.run_until(std::chrono::steady_clock::now() + patience, [&] { return unserved().empty(); });
}

asio::awaitable<void> TcpHub::send_to(int rank, std::shared_ptr<const Frame> frame) {
  try {
    co_await write_frame(*members_[rank].socket, *frame);
  } catch (const std::exception&) {
    // listen_to sees the same end, and says so.
  }
  members_[rank].is_writing = false;
}

std::string TcpHub::missing_text(int waiting) const {
  const std::string refused =
      doorkeeper_.refused() == 0 ? "" : fmt::format("; {} connections were refused", doorkeeper_.refused());
  return fmt::format("{}: rank {} waited {} ms for ranks {}, which did not come{}", operation_, waiting,
                     deadline_.count() / 1'000'000, rank_list(missing()), refused);
}

std::vector<int> TcpHub::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (!members_[rank].contribution) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> TcpHub::unserved() const {
  std::vector<int> ranks;
  for (int rank = 1; rank < size(); ++rank) {
    if (members_[rank].is_writing) ranks.push_back(rank);
  }
  return ranks;
}

void TcpHub::break_up(ErrorCode code, const std::string& text) {
  if (!failure_) failure_.emplace(code, text);
}

// Sockets stay open until this object goes: closing one that has unread input would destroy the news on its way.
void TcpHub::fail_all() {
  send_to_all(pack(*failure_), kFarewell);
  throw *failure_;
}

}  // namespace heddle
