#include "memory/handover.hpp"

#include "base/clock.hpp"
#include "base/log.hpp"
#include "bootstrap/packing.hpp"
#include "bootstrap/rank_list.hpp"
#include "bootstrap/together.hpp"
#include "memory/host_identity.hpp"
#include "memory/inbox.hpp"

#include <algorithm>

namespace heddle {
namespace {

struct Peer {
  std::string host;
  Bytes ticket;
};

Peer unpack(const Bytes& message) {
  Unpacker unpacker(message);
  std::string host = unpacker.text();
  return {std::move(host), unpacker.blob()};
}

// One rank's part: hand in at every near peer, take from every near peer.
class Handover {
 public:
  Handover(int rank, const std::vector<Bytes>& messages, std::chrono::nanoseconds deadline)
      : rank_(rank), deadline_(deadline), until_(now_ns() + static_cast<std::uint64_t>(deadline.count())) {
    for (const Bytes& message : messages) peers_.push_back(unpack(message));
    taken_.resize(peers_.size());
  }

  std::vector<Descriptor> run(const Descriptor& mine, Inbox& inbox) {
    const int size = static_cast<int>(peers_.size());
    // Each begins at its own neighbour, so that not all knock at rank 0 first.
    for (int step = 1; step < size; ++step) {
      const int peer = (rank_ + step) % size;
      if (is_near(peer)) give(peer, mine, inbox);
    }
    while (!missing().empty()) {
      if (!take(inbox, until_)) fail_missing();
    }
    return std::move(taken_);
  }

 private:
  bool is_near(int peer) const { return peers_[peer].host == peers_[rank_].host; }

  // A dead peer does not keep us from serving the others; it will be named by what it did not hand in.
  void give(int peer, const Descriptor& mine, Inbox& inbox) {
    while (now_ns() < until_) {
      const HandIn outcome = hand_in(peers_[peer].ticket, {.from = rank_}, mine);
      if (outcome == HandIn::refused) log_warn("rank {} takes no descriptors any more: it failed or died", peer);
      if (outcome != HandIn::crowded) return;
      // All who are held up make room by taking.
      take(inbox, now_ns() + kRetryNs);
    }
  }

  bool take(Inbox& inbox, std::uint64_t until) {
    auto delivery = inbox.take(until);
    if (!delivery) return false;
    const int from = delivery->note.from;
    const bool expected = delivery->descriptor && from >= 0 && from < static_cast<int>(peers_.size()) && from != rank_ && !taken_[from];
    if (!expected) {
      fail(ErrorCode::mismatch, "a descriptor came from rank {}, wanted one of ranks {}", from, rank_list(missing()));
    }
    taken_[from] = std::move(delivery->descriptor);
    return true;
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
      if (peer != rank_ && is_near(peer) && !taken_[peer]) ranks.push_back(peer);
    }
    return ranks;
  }

  [[noreturn]] void fail_missing() const {
    fail(ErrorCode::timeout, "rank {} waited {} ms for the window descriptors of ranks {}", rank_,
         deadline_.count() / 1'000'000, rank_list(missing()));
  }

  static constexpr std::uint64_t kRetryNs = 2'000'000;

  const int rank_;
  const std::chrono::nanoseconds deadline_;
  const std::uint64_t until_;
  std::vector<Peer> peers_;
  std::vector<Descriptor> taken_;
};

}  // namespace

std::vector<Descriptor> exchange_descriptors(Bootstrap& bootstrap, const Descriptor& mine,
                                             std::chrono::nanoseconds deadline) {
  Inbox inbox = together(bootstrap, "open a socket for descriptors", [] { return Inbox(); });
  const Bytes message = Packer().put(host_identity()).put(inbox.ticket()).bytes();
  const auto messages = bootstrap.all_gather(message, "exchange socket addresses");
  return together(bootstrap, "hand descriptors over",
                  [&] { return Handover(bootstrap.rank(), messages, deadline).run(mine, inbox); });
}

}  // namespace heddle
