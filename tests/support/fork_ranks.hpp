// Ranks that are forked processes: run a function in each, collect what it returned or why it failed, kill stragglers.
//
//   const auto outcomes = run_ranks(2, [](int rank) { return to_bytes(work(rank)); });
//   for (const RankOutcome& rank : outcomes) EXPECT_TRUE(rank.ok()) << rank;
//
// The body runs in the child. It may throw, use EXPECT_ and ASSERT_ (a failure there makes the rank fail), or die.
// Fork before the test starts threads: a child has only the thread that forked it.
#pragma once

#include "base/clock.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace heddle::testing {

using Bytes = std::vector<std::byte>;
using RankBody = std::function<Bytes(int rank)>;

template <class T>
Bytes to_bytes(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* first = reinterpret_cast<const std::byte*>(&value);
  return {first, first + sizeof value};
}

template <class T>
T from_bytes(const Bytes& bytes) {
  T value{};
  EXPECT_EQ(bytes.size(), sizeof value);
  std::memcpy(static_cast<void*>(&value), bytes.data(), std::min(bytes.size(), sizeof value));
  return value;
}

struct RankOutcome {
  int rank = -1;
  int exit_code = -1;      // 0 = the body returned; -1 = it did not exit by itself
  int signal = 0;          // that ended it, SIGKILL also for a straggler
  bool straggler = false;  // killed at the deadline
  Bytes result;            // what the body returned
  std::string message;     // what() of the exception that left it

  bool ok() const { return exit_code == 0; }
};

inline std::ostream& operator<<(std::ostream& out, const RankOutcome& rank) {
  out << "rank " << rank.rank << ": exit " << rank.exit_code;
  if (rank.signal != 0) out << ", signal " << rank.signal;
  if (rank.straggler) out << ", killed at the deadline";
  return out << (rank.message.empty() ? "" : ": ") << rank.message;
}

/// Forks at construction. Destroying kills what still runs.
class ForkedRanks {
 public:
  ForkedRanks(int count, const RankBody& body) {
    // A child would print again what the parent has buffered.
    std::fflush(nullptr);
    for (int rank = 0; rank < count; ++rank) start(rank, body);
  }
  ~ForkedRanks() {
    for (Child& child : children_) reap(child, true);
  }
  ForkedRanks(const ForkedRanks&) = delete;

  pid_t pid(int rank) const { return children_.at(rank).pid; }
  void kill(int rank, int signal = SIGKILL) { ::kill(children_.at(rank).pid, signal); }

  /// Waits for all, kills those still running at the deadline; one outcome per rank, by rank.
  std::vector<RankOutcome> wait(std::chrono::nanoseconds deadline = std::chrono::seconds(120)) {
    const std::uint64_t end = now_ns() + static_cast<std::uint64_t>(deadline.count());
    while (any_open() && now_ns() < end) read_some(static_cast<int>((end - now_ns()) / 1'000'000) + 1);
    std::vector<RankOutcome> outcomes;
    for (Child& child : children_) outcomes.push_back(reap(child, child.pipe >= 0));
    return outcomes;
  }

 private:
  static constexpr int kThrew = 1;
  static constexpr int kFailedExpectation = 2;

  struct Child {
    pid_t pid = -1;  // -1 = reaped
    int pipe = -1;   // -1 = at its end
    Bytes written;
    RankOutcome outcome;
  };

  void start(int rank, const RankBody& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("fork_ranks: pipe2 failed");
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("fork_ranks: fork failed");
    if (pid == 0) {
      for (const Child& sibling : children_) ::close(sibling.pipe);
      ::close(ends[0]);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(kThrew);
      ::_exit(run_child(rank, body, ends[1]));
    }
    ::close(ends[1]);
    children_.push_back({.pid = pid, .pipe = ends[0], .written = {}, .outcome = {}});
    children_.back().outcome.rank = rank;
  }

  static int run_child(int rank, const RankBody& body, int pipe) {
    int code = 0;
    try {
      const Bytes result = body(rank);
      write_all(pipe, result.data(), result.size());
      if (::testing::Test::HasFailure()) code = kFailedExpectation;
    } catch (const std::exception& error) {
      write_all(pipe, error.what(), std::strlen(error.what()));
      code = kThrew;
    }
    std::fflush(nullptr);
    return code;
  }

  static void write_all(int pipe, const void* data, std::size_t bytes) {
    const auto* next = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t wrote = ::write(pipe, next, bytes);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return;
      next += wrote;
      bytes -= static_cast<std::size_t>(wrote);
    }
  }

  bool any_open() const {
    for (const Child& child : children_) {
      if (child.pipe >= 0) return true;
    }
    return false;
  }

  void read_some(int timeout_ms) {
    std::vector<pollfd> polled;
    for (const Child& child : children_) polled.push_back({child.pipe, POLLIN, 0});  // poll skips a negative one
    if (::poll(polled.data(), polled.size(), timeout_ms) <= 0) return;
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents != 0) read_from(children_[i]);
    }
  }

  static void read_from(Child& child) {
    std::byte buffer[4096];
    const ssize_t count = ::read(child.pipe, buffer, sizeof buffer);
    if (count > 0) child.written.insert(child.written.end(), buffer, buffer + count);
    if (count > 0 || (count < 0 && errno == EINTR)) return;
    ::close(child.pipe);
    child.pipe = -1;
  }

  static RankOutcome reap(Child& child, bool straggler) {
    if (child.pid < 0) return child.outcome;
    if (straggler) ::kill(child.pid, SIGKILL);
    int status = 0;
    while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {}
    child.pid = -1;
    if (child.pipe >= 0) ::close(child.pipe);
    child.pipe = -1;
    child.outcome.straggler = straggler;
    if (WIFEXITED(status)) child.outcome.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) child.outcome.signal = WTERMSIG(status);
    if (child.outcome.exit_code == kThrew) {
      child.outcome.message.assign(reinterpret_cast<const char*>(child.written.data()), child.written.size());
    } else {
      child.outcome.result = std::move(child.written);
    }
    return child.outcome;
  }

  std::vector<Child> children_;
};

/// Forks `count` ranks, waits for all of them. `body` takes the rank and returns Bytes or nothing.
template <class Body>
std::vector<RankOutcome> run_ranks(int count, Body body,
                                   std::chrono::nanoseconds deadline = std::chrono::seconds(120)) {
  if constexpr (std::is_void_v<std::invoke_result_t<Body, int>>) {
    return ForkedRanks(count, [&](int rank) { return body(rank), Bytes{}; }).wait(deadline);
  } else {
    return ForkedRanks(count, body).wait(deadline);
  }
}

/// Ends the calling rank as `kill -9` would: nothing is cleaned up.
[[noreturn]] inline void die_now() {
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

}  // namespace heddle::testing
