// How ranks find one another before they share memory: rank, size and an all-gather are all that Heddle asks for.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

using Bytes = std::vector<std::byte>;

/// A group of ranks. Every call is collective: all ranks make the same calls in the same order.
/// Not thread-safe: one thread at a time per rank. A call that fails leaves the group broken: this rank's later calls
/// throw Error{faulted} with the first reason.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Gives every rank everyone's bytes, by rank; lengths may differ between ranks, and be 0.
  /// `operation` names the call in errors; ranks whose names differ get Error{mismatch}.
  /// Throws Error{timeout} that names the missing ranks once the group's deadline has passed, and
  /// Error{destroyed} that names a rank which died or left.
  std::vector<Bytes> all_gather(std::span<const std::byte> mine, std::string_view operation = "all_gather");

  /// Returns when every rank has called it; fails as all_gather does.
  void barrier(std::string_view operation = "barrier") { all_gather({}, operation); }

 private:
  // Every rank's bytes or an exception; not called again after one.
  virtual std::vector<Bytes> exchange(std::string_view operation, std::span<const std::byte> mine) = 0;

  std::optional<std::string> broken_;
};

}  // namespace heddle
