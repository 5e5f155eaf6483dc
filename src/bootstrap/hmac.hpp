// Proof that somebody holds a secret, without showing it.
#pragma once

#include "bootstrap/token.hpp"

#include <string_view>

namespace heddle {

/// HMAC-SHA-256 (RFC 2104). Throws Error{system}.
Token hmac_sha256(std::string_view secret, std::span<const std::byte> message);

}  // namespace heddle
