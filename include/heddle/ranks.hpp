// Ways for ranks to find one another.
#pragma once

#include <heddle/bootstrap.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace heddle {

/// One Bootstrap per rank, 1 to kMaxRanks of them; each goes to its own thread. A rank that destroys its object leaves
/// the group: peers that then wait for it fail at once.
std::vector<std::unique_ptr<Bootstrap>> in_process(int size, std::chrono::nanoseconds deadline);

/// A TCP socket that listens for the peers of rank 0. Whoever has it closes it, or passes it to tcp_store.
struct TcpListener {
  int descriptor = -1;
  std::uint16_t port = 0;
};

/// Port 0: a free one, to be told to the peers. Throws Error{system}.
TcpListener tcp_listen(const std::string& host = "127.0.0.1", std::uint16_t port = 0);

/// Random, 64 hexadecimal digits.
std::string make_secret();

/// Who meets where. All ranks pass the same size, address and secret.
struct TcpGroup {
  int rank = 0;
  int size = 1;
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  std::string secret{};    // empty: from HEDDLE_SECRET in the environment. Peers prove that they hold it, and rank 0 too.
  TcpListener listener{};  // instead of a port: one that listens already. Closed by the group, on every rank that passes
                           // it: ranks forked after tcp_listen pass their copies.
  std::chrono::nanoseconds deadline = std::chrono::seconds(100);  // of each call, the joining included
};

/// Ranks are processes, of one host or several; rank 0 listens, all-gathers go through it. Collective: returns when all
/// have joined. Throws Error{timeout} that names who did not, Error{mismatch} for another secret, size or rank.
std::unique_ptr<Bootstrap> tcp_store(const TcpGroup&);

/// Takes this rank's bytes, returns every rank's, by rank. Lengths differ between ranks.
using AllGather = std::function<std::vector<Bytes>(Bytes)>;

/// Over the caller's own all-gather, such as a torch ProcessGroup's or an mpi4py communicator's; its deadline and its
/// exceptions stay its own. What it returns is checked: Error{mismatch} if it is not one entry a rank, ours in our place.
std::unique_ptr<Bootstrap> callable(int rank, int size, AllGather);

}  // namespace heddle
