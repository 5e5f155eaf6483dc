#include "bootstrap/hmac.hpp"

#include "base/error.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>

namespace heddle {

Token hmac_sha256(std::string_view secret, std::span<const std::byte> message) {
  Token proof;
  unsigned length = 0;
  const auto* text = reinterpret_cast<const unsigned char*>(message.data());
  auto* out = reinterpret_cast<unsigned char*>(proof.data());
  const bool done = ::HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), text, message.size(), out,
                           &length) != nullptr;
  if (!done || length != proof.size()) fail(ErrorCode::system, "HMAC-SHA-256 of {} bytes failed", message.size());
  return proof;
}

}  // namespace heddle
