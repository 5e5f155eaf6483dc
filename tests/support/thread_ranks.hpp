// Ranks that are threads: run a function in each and keep what it threw.
#pragma once

#include "base/error.hpp"
#include "bootstrap/in_process.hpp"

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace heddle::testing {

// Long enough that only a bug reaches it, also under sanitizers on a busy machine.
inline constexpr std::chrono::seconds kPatience{60};

/// What each rank's body threw, by rank. Other exceptions than Error end the test, as they should.
using Errors = std::vector<std::optional<Error>>;

/// Runs body(bootstrap) in one thread per rank; each bootstrap is destroyed when its body ends.
inline Errors run_threads(std::vector<std::unique_ptr<Bootstrap>> ranks, const std::function<void(Bootstrap&)>& body) {
  Errors errors(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&errors, &body, rank, own = std::move(ranks[rank])]() mutable {
      try {
        body(*own);
      } catch (const Error& error) {
        errors[rank] = error;
      }
      own.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline Errors run_threads(int size, const std::function<void(Bootstrap&)>& body) {
  return run_threads(in_process(size, kPatience), body);
}

}  // namespace heddle::testing
