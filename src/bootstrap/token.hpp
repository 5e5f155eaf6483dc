// 256 random bits that only those who were told can present.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace heddle {

using Token = std::array<std::byte, 32>;

/// From the kernel's generator. Throws Error{system}.
Token random_token();

/// Takes as long for a near miss as for any other, so that trying tells nothing.
bool same_secret(std::span<const std::byte>, std::span<const std::byte>);

}  // namespace heddle
