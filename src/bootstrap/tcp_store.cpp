#include "bootstrap/tcp_store.hpp"

#include "base/error.hpp"
#include "bootstrap/tcp_hub.hpp"
#include "bootstrap/tcp_leaf.hpp"
#include "bootstrap/token.hpp"
#include "layout/limits.hpp"

#include <sys/socket.h>

#include <cstdlib>

namespace heddle {
namespace {

bool is_listening(int descriptor) {
  int answer = 0;
  socklen_t length = sizeof answer;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &answer, &length) == 0 && answer != 0;
}

TcpGroup checked(TcpGroup group) {
  if (const char* secret = std::getenv("HEDDLE_SECRET"); group.secret.empty() && secret != nullptr) {
    group.secret = secret;
  }
  HEDDLE_CHECK(group.size >= 1 && group.size <= kMaxRanks, "tcp_store: size is {}, must be 1 to {}", group.size,
               kMaxRanks);
  HEDDLE_CHECK(group.rank >= 0 && group.rank < group.size, "tcp_store: rank is {}, must be 0 to {}", group.rank,
               group.size - 1);
  HEDDLE_CHECK(!group.secret.empty(), "tcp_store: secret is empty; pass one (make_secret()), or set HEDDLE_SECRET");
  HEDDLE_CHECK(group.deadline.count() > 0, "tcp_store: deadline is {} ns, must be positive", group.deadline.count());
  const bool is_addressed =
      group.port != 0 || (group.rank == 0 ? group.listener.descriptor >= 0 : group.listener.port != 0);
  HEDDLE_CHECK(group.size == 1 || is_addressed,
               "tcp_store: port is 0 on rank {}; rank 0 needs a listener or a port, the others rank 0's port",
               group.rank);
  HEDDLE_CHECK(group.listener.descriptor < 0 || is_listening(group.listener.descriptor),
               "tcp_store: listener.descriptor is {}, must be a listening socket", group.listener.descriptor);
  return group;
}

}  // namespace

TcpListener tcp_listen(const std::string& host, std::uint16_t port) {
  try {
    asio::io_context context;
    asio::ip::tcp::acceptor acceptor(context, resolve(context, host, port).front());
    const std::uint16_t chosen = acceptor.local_endpoint().port();
    return {acceptor.release(), chosen};
  } catch (const asio::system_error& error) {
    fail(ErrorCode::system, "tcp_listen on {}:{}: {}", host, port, error.what());
  }
}

std::string make_secret() {
  std::string digits;
  for (const std::byte value : random_token()) digits += fmt::format("{:02x}", static_cast<unsigned>(value));
  return digits;
}

std::unique_ptr<Bootstrap> tcp_store(const TcpGroup& given) {
  const TcpGroup group = checked(given);
  try {
    if (group.rank == 0) return std::make_unique<TcpHub>(group);
    return std::make_unique<TcpLeaf>(group);
  } catch (const asio::system_error& error) {
    fail(ErrorCode::system, "tcp_store: rank {} at {}:{}: {}", group.rank, group.host, group.port, error.what());
  }
}

}  // namespace heddle
