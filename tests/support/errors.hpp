// What a test asks of errors.
#pragma once

#include "base/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace heddle {

inline void PrintTo(ErrorCode code, std::ostream* out) { *out << name_of(code); }
inline void PrintTo(const Error& error, std::ostream* out) { *out << name_of(error.code()) << ": " << error.what(); }

}  // namespace heddle

namespace heddle::testing {

/// The error that `action` throws, if any.
template <class Action>
std::optional<Error> error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

/// Holds an Error of this code whose message contains every one of `words`.
MATCHER_P2(IsError, code, words, "is an error that names its cause") {
  const std::optional<Error>& error = arg;
  if (!error || error->code() != code) return false;
  for (const std::string& word : words) {
    if (std::string(error->what()).find(word) == std::string::npos) {
      *result_listener << "lacks '" << word << "'";
      return false;
    }
  }
  return true;
}

/// IsError with its words as a list.
template <class... Words>
auto error_with(ErrorCode code, Words... words) {
  return IsError(code, std::vector<std::string>{words...});
}

/// No rank of these threw.
MATCHER(NoneFailed, "no rank failed") {
  for (std::size_t rank = 0; rank < arg.size(); ++rank) {
    if (!arg[rank]) continue;
    *result_listener << "rank " << rank << ": " << arg[rank]->what();
    return false;
  }
  return true;
}

}  // namespace heddle::testing
