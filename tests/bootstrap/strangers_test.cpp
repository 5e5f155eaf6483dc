// Who may reach rank 0's port: a port scanner, another job, somebody who guesses, a peer gone mad. None of them may
// crash it, hold it up or be believed.
#include "bootstrap/handshake.hpp"
#include "bootstrap/messages.hpp"
#include "bootstrap/tcp_store.hpp"
#include "support/errors.hpp"
#include "support/thread_ranks.hpp"

#include <asio/connect.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include <future>

namespace heddle {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;
using testing::error_of;
using testing::error_with;

class Strangers : public ::testing::Test {
 protected:
  // Rank 0 of two, in a thread of its own: joins, then makes one call.
  void start_hub(std::chrono::nanoseconds deadline) {
    const TcpGroup group{.size = 2, .secret = "secret", .listener = listener_, .deadline = deadline};
    hub_ = std::async(std::launch::async, [group] {
      return error_of([&] {
        const auto bootstrap = tcp_store(group);
        bootstrap->all_gather({}, "plan");
      });
    });
  }

  TcpGroup peer(const std::string& secret, int rank = 1, int size = 2) const {
    return {.rank = rank, .size = size, .port = listener_.port, .secret = secret, .deadline = testing::kPatience};
  }

  void join_and_plan() const { tcp_store(peer("secret"))->all_gather({}, "plan"); }

  tcp::socket dial() {
    tcp::socket socket(context_);
    socket.connect({asio::ip::make_address("127.0.0.1"), listener_.port});
    return socket;
  }

  // A peer that knows the secret, up to its first frame.
  tcp::socket shake_hands() {
    tcp::socket socket = dial();
    Challenge challenge;
    asio::read(socket, asio::buffer(&challenge, sizeof challenge));
    const Answer answer = make_answer(challenge, {.rank = 1, .size = 2}, "secret");
    asio::write(socket, asio::buffer(&answer, sizeof answer));
    Verdict verdict;
    asio::read(socket, asio::buffer(&verdict, sizeof verdict));
    check_verdict(challenge, answer, verdict, "secret");
    return socket;
  }

  asio::io_context context_;
  TcpListener listener_ = tcp_listen();
  std::future<std::optional<Error>> hub_;
};

TEST_F(Strangers, SilentOnesHoldNobodyUp) {
  start_hub(testing::kPatience);
  std::vector<tcp::socket> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(dial());
  join_and_plan();
  EXPECT_EQ(hub_.get(), std::nullopt);
}

TEST_F(Strangers, RubbishIsDropped) {
  start_hub(testing::kPatience);
  std::vector<tcp::socket> babbling;
  for (int i = 0; i < 20; ++i) {
    babbling.push_back(dial());
    const std::string rubbish(100'000, static_cast<char>(i * 13));
    asio::error_code ignored;
    asio::write(babbling.back(), asio::buffer(rubbish), ignored);
  }
  join_and_plan();
  EXPECT_EQ(hub_.get(), std::nullopt);
}

TEST_F(Strangers, HalfAnAnswerIsDropped) {
  start_hub(testing::kPatience);
  for (int i = 0; i < 20; ++i) {
    tcp::socket socket = dial();
    asio::write(socket, asio::buffer("HEDL and no more"));
  }
  join_and_plan();
  EXPECT_EQ(hub_.get(), std::nullopt);
}

// The one with the wrong secret learns why; rank 0 goes on waiting for the real one.
TEST_F(Strangers, WrongSecretIsRefused) {
  start_hub(testing::kPatience);
  EXPECT_THAT(error_of([&] { tcp_store(peer("guess")); }),
              error_with(ErrorCode::mismatch, "rank 0 refused rank 1", "secret"));
  join_and_plan();
  EXPECT_EQ(hub_.get(), std::nullopt);
}

TEST_F(Strangers, RefusalsAreToldWhenSomebodyIsMissing) {
  start_hub(1500ms);
  EXPECT_THAT(error_of([&] { tcp_store(peer("guess")); }), error_with(ErrorCode::mismatch, "secret"));
  EXPECT_THAT(hub_.get(), error_with(ErrorCode::timeout, "ranks 1", "1 connections were refused"));
}

TEST_F(Strangers, WrongSizeAndRankAreRefused) {
  start_hub(testing::kPatience);
  EXPECT_THAT(error_of([&] { tcp_store(peer("secret", 1, 3)); }), error_with(ErrorCode::mismatch, "not of 3 ranks"));
  join_and_plan();
  EXPECT_EQ(hub_.get(), std::nullopt);
}

TEST_F(Strangers, RankThatIsTakenIsRefused) {
  start_hub(testing::kPatience);
  tcp::socket first = shake_hands();
  EXPECT_THAT(error_of([&] { tcp_store(peer("secret")); }), error_with(ErrorCode::mismatch, "rank is taken"));
  first.close();
  EXPECT_THAT(hub_.get(), error_with(ErrorCode::destroyed, "join: rank 1 died or left"));
}

// A length is believed only up to what a rank may contribute; nothing is allocated for more.
TEST_F(Strangers, OversizedLengthIsRefused) {
  start_hub(testing::kPatience);
  tcp::socket socket = shake_hands();
  const std::uint64_t head[2] = {0, std::uint64_t{1} << 60};
  asio::write(socket, asio::buffer(head));
  EXPECT_THAT(hub_.get(), error_with(ErrorCode::mismatch, "rank 1", "1152921504606846976 bytes, at most"));
}

TEST_F(Strangers, UnknownFrameIsRefused) {
  start_hub(testing::kPatience);
  tcp::socket socket = shake_hands();
  const std::uint64_t head[2] = {77, 0};
  asio::write(socket, asio::buffer(head));
  EXPECT_THAT(hub_.get(), error_with(ErrorCode::mismatch, "rank 1", "kind 77"));
}

// A well-formed frame whose inner lengths lie.
TEST_F(Strangers, LyingContributionIsRefused) {
  start_hub(testing::kPatience);
  tcp::socket socket = shake_hands();
  const std::uint64_t frame[3] = {0, 8, std::uint64_t{1} << 60};
  asio::write(socket, asio::buffer(frame));
  EXPECT_THAT(hub_.get(), error_with(ErrorCode::mismatch, "rank 1", "are left"));
}

// Whoever took rank 0's port first, without the secret.
TEST_F(Strangers, FalseRankZeroIsFoundOut) {
  tcp::acceptor acceptor(context_, tcp::v4(), listener_.descriptor);
  auto victim = std::async(std::launch::async, [this] { return error_of([&] { tcp_store(peer("secret")); }); });
  tcp::socket socket = acceptor.accept();
  const Challenge challenge = make_challenge();
  asio::write(socket, asio::buffer(&challenge, sizeof challenge));
  Answer answer;
  asio::read(socket, asio::buffer(&answer, sizeof answer));
  const Verdict verdict = make_verdict(challenge, answer, Admission::admitted, "guess");
  asio::write(socket, asio::buffer(&verdict, sizeof verdict));
  EXPECT_THAT(victim.get(), error_with(ErrorCode::mismatch, "does not hold the secret"));
}

TEST_F(Strangers, OtherServersAreNotJoined) {
  tcp::acceptor acceptor(context_, tcp::v4(), listener_.descriptor);
  auto victim = std::async(std::launch::async, [this] { return error_of([&] { tcp_store(peer("secret")); }); });
  tcp::socket socket = acceptor.accept();
  asio::write(socket, asio::buffer("220 mail.example.org ESMTP, and so on and on"));
  EXPECT_THAT(victim.get(), error_with(ErrorCode::mismatch, "not rank 0 of a Heddle group"));
}

}  // namespace
}  // namespace heddle
