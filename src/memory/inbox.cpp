#include "memory/inbox.hpp"

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "bootstrap/packing.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>

namespace heddle {
namespace {

// Room for descriptors that nobody asked for: the kernel would else drop them silently, we close and log.
constexpr std::size_t kControlBytes = CMSG_SPACE(8 * sizeof(int));

struct Slip {
  Token token;
  Note note;
};

// One message per connection and message boundaries kept: no partial reads.
Descriptor open_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) fail(ErrorCode::system, "socket(AF_UNIX): {}", errno_text());
  return socket;
}

Bytes address_of(const Descriptor& socket) {
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket.number(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail(ErrorCode::system, "getsockname: {}", errno_text());
  }
  const auto* first = reinterpret_cast<const std::byte*>(&address);
  return {first, first + length};
}

bool has_spoken(const Descriptor& visitor) {
  pollfd polled{visitor.number(), POLLIN, 0};
  return ::poll(&polled, 1, 0) > 0;
}

std::vector<Descriptor> descriptors_in(msghdr& message) {
  std::vector<Descriptor> found;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t offset = 0; CMSG_LEN(offset + sizeof(int)) <= part->cmsg_len; offset += sizeof(int)) {
      int number;
      std::memcpy(&number, CMSG_DATA(part) + offset, sizeof number);
      found.emplace_back(number);
    }
  }
  return found;
}

}  // namespace

Inbox::Inbox() : token_(random_token()), listener_(open_socket()) {
  // Binding to a family alone makes the kernel choose a free abstract name.
  const sockaddr_un anywhere{.sun_family = AF_UNIX, .sun_path = {}};
  if (::bind(listener_.number(), reinterpret_cast<const sockaddr*>(&anywhere), sizeof(sa_family_t)) != 0 ||
      ::listen(listener_.number(), 2 * kMaxStrangers) != 0) {
    fail(ErrorCode::system, "bind and listen on an abstract Unix socket: {}", errno_text());
  }
}

Bytes Inbox::ticket() const { return Packer().put(address_of(listener_)).put(token_).bytes(); }

std::optional<Inbox::Delivery> Inbox::take(std::uint64_t until) {
  do {
    await(until);
    admit();
    for (std::size_t i = 0; i < visitors_.size();) {
      if (!has_spoken(visitors_[i])) {
        ++i;
        continue;
      }
      const Descriptor visitor = std::move(visitors_[i]);
      visitors_.erase(visitors_.begin() + static_cast<std::ptrdiff_t>(i));
      if (auto delivery = read(visitor)) return delivery;
    }
  } while (now_ns() < until);
  return std::nullopt;
}

// Returns when a peer connects, a visitor speaks or leaves, or at `until`.
void Inbox::await(std::uint64_t until) {
  std::vector<pollfd> polled{{listener_.number(), POLLIN, 0}};
  for (const Descriptor& visitor : visitors_) polled.push_back({visitor.number(), POLLIN, 0});
  const std::uint64_t now = now_ns();
  const std::uint64_t left_ms = now < until ? (until - now) / 1'000'000 + 1 : 0;
  ::poll(polled.data(), polled.size(), static_cast<int>(std::min<std::uint64_t>(left_ms, 60'000)));
}

void Inbox::admit() {
  for (;;) {
    Descriptor visitor(::accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!visitor && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!visitor && errno == EAGAIN) return;
    if (!visitor) fail(ErrorCode::system, "accept on the socket for window descriptors: {}", errno_text());
    visitors_.push_back(std::move(visitor));
    if (visitors_.size() > kMaxStrangers) drop_a_silent_one();
  }
}

/// The oldest; if all have spoken, none.
void Inbox::drop_a_silent_one() {
  const auto silent = std::find_if(visitors_.begin(), visitors_.end(), [](const Descriptor& visitor) { return !has_spoken(visitor); });
  if (silent != visitors_.end()) visitors_.erase(silent);
}

std::optional<Inbox::Delivery> Inbox::read(const Descriptor& visitor) {
  Slip slip;
  iovec text{&slip, sizeof slip};
  alignas(cmsghdr) std::byte control[kControlBytes];
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t count = ::recvmsg(visitor.number(), &message, MSG_CMSG_CLOEXEC);
  if (count <= 0) return std::nullopt;  // left without a word, as peers do that find it crowded
  auto found = descriptors_in(message);
  const bool whole = count == sizeof slip && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 && found.size() <= 1;
  if (!whole || !same_secret(slip.token, token_)) {
    if (dropped_++ == 0) log_warn("dropped a message without our token on the socket for window descriptors");
    return std::nullopt;
  }
  return Delivery{slip.note, found.empty() ? Descriptor() : std::move(found[0])};
}

HandIn hand_in(const Bytes& ticket, const Note& note, const Descriptor& descriptor) {
  Unpacker unpacker(ticket);
  const Bytes address = unpacker.blob();
  const Bytes token = unpacker.blob();
  unpacker.finish();
  Slip slip{.token = {}, .note = note};
  HEDDLE_CHECK(token.size() == slip.token.size(), "hand_in: the token has {} bytes, must be {}", token.size(),
               slip.token.size());
  std::memcpy(slip.token.data(), token.data(), token.size());

  const Descriptor socket = open_socket();
  if (::connect(socket.number(), reinterpret_cast<const sockaddr*>(address.data()),
                static_cast<socklen_t>(address.size())) != 0) {
    if (errno == EAGAIN) return HandIn::crowded;
    if (errno == ECONNREFUSED) return HandIn::refused;
    fail(ErrorCode::system, "connect to a peer's Unix socket: {}", errno_text());
  }
  iovec text{&slip, sizeof slip};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  if (descriptor) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = descriptor.number();
    std::memcpy(CMSG_DATA(part), &number, sizeof number);
  }
  if (::sendmsg(socket.number(), &message, MSG_NOSIGNAL) >= 0) return HandIn::done;
  // The kernel bounds the descriptors a user has on their way by RLIMIT_NOFILE.
  if (errno == ETOOMANYREFS || errno == EAGAIN) return HandIn::crowded;
  if (errno == EPIPE || errno == ECONNRESET) return HandIn::refused;
  fail(ErrorCode::system, "sendmsg to a peer's Unix socket: {}", errno_text());
}

}  // namespace heddle
