#include "bootstrap/packing.hpp"

#include "support/errors.hpp"

namespace heddle {
namespace {

using testing::error_of;
using testing::error_with;

TEST(Packing, ReadsWhatWasPut) {
  const Packer packer = Packer().put(7).put("seven").put("").put(Bytes(3, std::byte{9}));
  Unpacker unpacker(packer.bytes());
  EXPECT_EQ(unpacker.number(), 7u);
  EXPECT_EQ(unpacker.text(), "seven");
  EXPECT_EQ(unpacker.text(), "");
  EXPECT_EQ(unpacker.blob(), Bytes(3, std::byte{9}));
  unpacker.finish();
}

// Every prefix of a message is refused; none makes the reader go past its end.
TEST(Packing, ShortMessagesAreRefused) {
  const Bytes whole = Packer().put("seven").bytes();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_THAT(error_of([&] { Unpacker(cut).text(); }), error_with(ErrorCode::mismatch, "are left"));
  }
}

// A length near 2^64 must not wrap around in the bounds check.
TEST(Packing, HugeLengthIsRefused) {
  const Bytes lie = Packer().put(~std::uint64_t{0}).bytes();
  EXPECT_THAT(error_of([&] { Unpacker(lie).blob(); }), error_with(ErrorCode::mismatch, "18446744073709551615"));
}

TEST(Packing, LeftoversAreRefused) {
  const Bytes long_one = Packer().put(1).put(2).bytes();
  Unpacker unpacker(long_one);
  unpacker.number();
  EXPECT_THAT(error_of([&] { unpacker.finish(); }), error_with(ErrorCode::mismatch, "8 bytes more"));
}

}  // namespace
}  // namespace heddle
