#include "bootstrap/messages.hpp"

#include "support/errors.hpp"

namespace heddle {
namespace {

using testing::error_of;
using testing::error_with;

TEST(Messages, SayWhatWasPacked) {
  const Contribution contribution = unpack_contribution(pack(Contribution{"plan", Bytes(5, std::byte{1})}));
  EXPECT_EQ(contribution.operation, "plan");
  EXPECT_EQ(contribution.bytes, Bytes(5, std::byte{1}));
  const std::vector<Bytes> gathered = {{}, Bytes(3, std::byte{2})};
  EXPECT_EQ(unpack_gathered(pack(gathered), 2), gathered);
  const Error failure = unpack_failure(pack(Error(ErrorCode::timeout, "rank 3")));
  EXPECT_EQ(failure.code(), ErrorCode::timeout);
  EXPECT_STREQ(failure.what(), "rank 3");
  EXPECT_EQ(unpack_gave_up(pack_gave_up(9)), 9u);
}

TEST(Messages, OtherKindsAndSizesAreRefused) {
  const Frame frame = pack(std::vector<Bytes>(2));
  EXPECT_THAT(error_of([&] { unpack_contribution(frame); }), error_with(ErrorCode::mismatch, "kind 1, wanted 0"));
  EXPECT_THAT(error_of([&] { unpack_gathered(frame, 3); }), error_with(ErrorCode::mismatch, "are left"));
  EXPECT_THAT(error_of([&] { unpack_gathered(frame, 1); }), error_with(ErrorCode::mismatch, "more than expected"));
}

}  // namespace
}  // namespace heddle
