#include "memory/inbox.hpp"

#include "base/clock.hpp"
#include "bootstrap/packing.hpp"
#include "memory/memfd.hpp"
#include "memory_checks.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

namespace heddle {
namespace {

constexpr std::uint64_t kSoon = 20'000'000;
constexpr std::uint64_t kPatience = 60'000'000'000;

// Anybody on the host may connect to an abstract socket.
Descriptor stranger(const Inbox& inbox) {
  const Bytes ticket = inbox.ticket();
  Unpacker unpacker(ticket);
  const Bytes address = unpacker.blob();
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.number(), reinterpret_cast<const sockaddr*>(address.data()),
                      static_cast<socklen_t>(address.size())),
            0);
  return socket;
}

Bytes with_wrong_token(const Inbox& inbox) {
  Bytes ticket = inbox.ticket();
  ticket.back() ^= std::byte{1};
  return ticket;
}

bool same_file(const Descriptor& a, const Descriptor& b) {
  const auto inode = [](const Descriptor& file) {
    char target[64] = {};
    EXPECT_GT(::readlink(("/proc/self/fd/" + std::to_string(file.number())).c_str(), target, sizeof target - 1), 0);
    return std::string(target);
  };
  return inode(a) == inode(b);
}

TEST(Inbox, DeliversWhatWasHandedIn) {
  Inbox inbox;
  const Descriptor memory = make_sealed_memory(4096);
  ASSERT_EQ(hand_in(inbox.ticket(), {.from = 3}, memory), HandIn::done);
  const auto delivery = inbox.take(now_ns() + kPatience);
  ASSERT_TRUE(delivery);
  EXPECT_EQ(delivery->note.from, 3);
  EXPECT_TRUE(same_file(delivery->descriptor, memory));
  EXPECT_NE(delivery->descriptor.number(), memory.number());
}

// The sender need not wait for the receiver: what it handed in stays, though it is gone.
TEST(Inbox, DeliversAfterTheSenderLeft) {
  Inbox inbox;
  for (int from = 0; from < 40; ++from)
    ASSERT_EQ(hand_in(inbox.ticket(), {.from = from}, make_sealed_memory(4096)), HandIn::done);
  for (int from = 0; from < 40; ++from) {
    const auto delivery = inbox.take(now_ns() + kPatience);
    ASSERT_TRUE(delivery);
    EXPECT_EQ(delivery->note.from, from);
  }
}

TEST(Inbox, GivesUpAtTheDeadline) {
  Inbox inbox;
  EXPECT_FALSE(inbox.take(now_ns() + kSoon));
  EXPECT_FALSE(inbox.take(0));
}

// A stranger that says nothing, says rubbish or shows another token must neither be believed nor hold up the peers.
TEST(Inbox, StrangersAreIgnored) {
  Inbox inbox;
  const Descriptor memory = make_sealed_memory(4096);
  const Descriptor silent = stranger(inbox);
  const Descriptor babbling = stranger(inbox);
  const std::string rubbish(1000, 'x');
  ASSERT_GT(::send(babbling.number(), rubbish.data(), rubbish.size(), 0), 0);
  stranger(inbox);  // and one that leaves at once
  ASSERT_EQ(hand_in(with_wrong_token(inbox), {.from = 1}, memory), HandIn::done);
  EXPECT_FALSE(inbox.take(now_ns() + kSoon));
  ASSERT_EQ(hand_in(inbox.ticket(), {.from = 2}, memory), HandIn::done);
  const auto delivery = inbox.take(now_ns() + kPatience);
  ASSERT_TRUE(delivery);
  EXPECT_EQ(delivery->note.from, 2);
}

// Else anybody could make us run out of descriptors.
TEST(Inbox, StrangersDescriptorsAreClosed) {
  Inbox inbox;
  const Descriptor memory = make_sealed_memory(4096);
  const std::size_t before = testing::open_descriptors();
  for (int i = 0; i < 50; ++i) ASSERT_EQ(hand_in(with_wrong_token(inbox), {.from = 1}, memory), HandIn::done);
  EXPECT_FALSE(inbox.take(now_ns() + kSoon));
  EXPECT_EQ(testing::open_descriptors(), before);
}

TEST(Inbox, SilentStrangersAreBounded) {
  Inbox inbox;
  const std::size_t before = testing::open_descriptors();
  std::vector<Descriptor> crowd;
  for (std::size_t i = 0; i < Inbox::kMaxStrangers + 50; ++i) crowd.push_back(stranger(inbox));
  EXPECT_FALSE(inbox.take(now_ns() + kSoon));
  EXPECT_EQ(testing::open_descriptors(), before + crowd.size() + Inbox::kMaxStrangers);
  ASSERT_EQ(hand_in(inbox.ticket(), {.from = 2}, make_sealed_memory(4096)), HandIn::done);
  EXPECT_TRUE(inbox.take(now_ns() + kPatience));
}

// Peers that all knock at once wait for one another instead of failing.
TEST(Inbox, FullBacklogIsCrowdedNotAnError) {
  Inbox inbox;
  const Descriptor memory = make_sealed_memory(4096);
  HandIn outcome = HandIn::done;
  for (int i = 0; i < 10'000 && outcome == HandIn::done; ++i) outcome = hand_in(inbox.ticket(), {.from = 1}, memory);
  EXPECT_EQ(outcome, HandIn::crowded);
  EXPECT_TRUE(inbox.take(now_ns() + kPatience));
  EXPECT_EQ(hand_in(inbox.ticket(), {.from = 1}, memory), HandIn::done);
}

TEST(Inbox, NobodyThereIsRefused) {
  Bytes ticket;
  {
    Inbox inbox;
    ticket = inbox.ticket();
  }
  EXPECT_EQ(hand_in(ticket, {.from = 1}, make_sealed_memory(4096)), HandIn::refused);
}

}  // namespace
}  // namespace heddle
