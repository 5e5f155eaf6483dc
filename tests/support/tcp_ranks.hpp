// Ranks that are forked processes and meet over loopback.
#pragma once

#include "bootstrap/tcp_store.hpp"
#include "support/fork_ranks.hpp"

namespace heddle::testing {

inline constexpr std::chrono::seconds kTcpPatience{60};

/// Forks `count` ranks, each of which runs body(bootstrap); it returns Bytes or nothing. Errors come back as messages.
template <class Body>
std::vector<RankOutcome> run_tcp_ranks(int count, Body body, std::chrono::nanoseconds deadline = kTcpPatience) {
  const TcpListener listener = tcp_listen();
  const std::string secret = make_secret();
  ForkedRanks ranks(count, [&](int rank) {
    const auto bootstrap =
        tcp_store({.rank = rank, .size = count, .secret = secret, .listener = listener, .deadline = deadline});
    if constexpr (std::is_void_v<std::invoke_result_t<Body, Bootstrap&>>) {
      body(*bootstrap);
      return Bytes{};
    } else {
      return body(*bootstrap);
    }
  });
  ::close(listener.descriptor);  // else joiners would wait for a rank 0 that died
  return ranks.wait();
}

/// All ranks ended well; tells what went wrong with those that did not.
inline void expect_all_ok(const std::vector<RankOutcome>& ranks) {
  for (const RankOutcome& rank : ranks) EXPECT_TRUE(rank.ok()) << rank;
}

}  // namespace heddle::testing
