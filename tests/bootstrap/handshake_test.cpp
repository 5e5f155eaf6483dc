#include "bootstrap/handshake.hpp"

#include "support/errors.hpp"

namespace heddle {
namespace {

using testing::error_of;
using testing::error_with;

constexpr Claim kRank1{.rank = 1, .size = 2};

TEST(Handshake, BothSidesProveTheSecret) {
  const Challenge challenge = make_challenge();
  const Answer answer = make_answer(challenge, kRank1, "secret");
  const Admission admission = judge(challenge, answer, 2, "secret");
  EXPECT_EQ(admission, Admission::admitted);
  check_verdict(challenge, answer, make_verdict(challenge, answer, admission, "secret"), "secret");
}

TEST(Handshake, WrongSecretIsRefused) {
  const Challenge challenge = make_challenge();
  const Answer answer = make_answer(challenge, kRank1, "guess");
  const Admission admission = judge(challenge, answer, 2, "secret");
  EXPECT_EQ(admission, Admission::wrong_secret);
  const Verdict verdict = make_verdict(challenge, answer, admission, "secret");
  EXPECT_EQ(verdict.proof, Token{});  // nothing to guess against
  EXPECT_THAT(error_of([&] { check_verdict(challenge, answer, verdict, "guess"); }),
              error_with(ErrorCode::mismatch, "rank 1", "secret is another"));
}

// An answer overheard earlier, or changed on its way, proves nothing.
TEST(Handshake, AnswersCannotBeReplayedOrChanged) {
  const Answer answer = make_answer(make_challenge(), kRank1, "secret");
  EXPECT_EQ(judge(make_challenge(), answer, 2, "secret"), Admission::wrong_secret);
  const Challenge challenge = make_challenge();
  Answer changed = make_answer(challenge, {.rank = 1, .size = 3}, "secret");
  changed.rank = 2;
  EXPECT_EQ(judge(challenge, changed, 3, "secret"), Admission::wrong_secret);
}

// Whoever took rank 0's address learns nothing and is found out, also if it sends our own proof back.
TEST(Handshake, FalseRankZeroIsFoundOut) {
  const Challenge challenge = make_challenge();
  const Answer answer = make_answer(challenge, kRank1, "secret");
  Verdict forged = make_verdict(challenge, answer, Admission::admitted, "guess");
  EXPECT_THAT(error_of([&] { check_verdict(challenge, answer, forged, "secret"); }),
              error_with(ErrorCode::mismatch, "does not hold the secret of rank 1"));
  forged.proof = answer.proof;
  EXPECT_THAT(error_of([&] { check_verdict(challenge, answer, forged, "secret"); }),
              error_with(ErrorCode::mismatch, "does not hold the secret"));
}

TEST(Handshake, SizeAndRankAreChecked) {
  const auto admission_of = [](Claim claim, int size) {
    const Challenge challenge = make_challenge();
    const Answer answer = make_answer(challenge, claim, "secret");
    const Admission admission = judge(challenge, answer, size, "secret");
    EXPECT_THAT(error_of([&] {
                  check_verdict(challenge, answer, make_verdict(challenge, answer, admission, "secret"), "secret");
                }),
                error_with(ErrorCode::mismatch, "refused"));
    return admission;
  };
  EXPECT_EQ(admission_of({.rank = 1, .size = 3}, 2), Admission::wrong_size);
  for (const int rank : {-1, 0, 2}) EXPECT_EQ(admission_of({.rank = rank, .size = 2}, 2), Admission::wrong_rank);
}

TEST(Handshake, OtherServersAndVersionsAreNamed) {
  Challenge other = make_challenge();
  other.version += 1;
  EXPECT_THAT(error_of([&] { make_answer(other, kRank1, "secret"); }), error_with(ErrorCode::mismatch, "version 2"));
  other.magic = 0x20505454;
  EXPECT_THAT(error_of([&] { make_answer(other, kRank1, "secret"); }),
              error_with(ErrorCode::mismatch, "not rank 0 of a Heddle group"));
}

}  // namespace
}  // namespace heddle
