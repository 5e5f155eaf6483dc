#include "bootstrap/token.hpp"

#include "base/error.hpp"

#include <sys/random.h>

namespace heddle {

Token random_token() {
  Token token;
  // Up to 256 bytes come whole or not at all.
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    fail(ErrorCode::system, "getrandom of {} bytes failed", token.size());
  }
  return token;
}

bool same_secret(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) return false;
  std::byte difference{0};
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{0};
}

}  // namespace heddle
