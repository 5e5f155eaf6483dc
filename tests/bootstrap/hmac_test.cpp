#include "bootstrap/hmac.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace heddle {
namespace {

std::string hex(const Token& token) {
  std::string digits;
  for (const std::byte value : token) digits += fmt::format("{:02x}", static_cast<unsigned>(value));
  return digits;
}

std::string hmac_hex(const std::string& key, const std::string& message) {
  return hex(hmac_sha256(key, std::as_bytes(std::span(message))));
}

// RFC 4231, test cases 1, 2, 3 and 6 (a key longer than a block).
TEST(Hmac, AgreesWithTheStandard) {
  EXPECT_EQ(hmac_hex(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac_hex("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac_hex(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hmac_hex(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

}  // namespace
}  // namespace heddle
