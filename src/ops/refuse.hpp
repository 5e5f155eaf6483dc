// An argument that this rank cannot accept: an error here, and a refusal that travels to the others (I7).
#pragma once

#include <cstring>
#include <string_view>

#include "base/error.hpp"
#include "layout/header.hpp"

namespace heddle {

struct BadArgument : Error {
  BadArgument(const std::string& message, const Refusal& why) : Error(ErrorCode::usage, message), refusal(why) {}
  Refusal refusal;
};

/// `argument` has `value`; the nearest legal value is `limit`.
struct Argument {
  std::string_view name;
  int64_t value = 0;
  int64_t limit = 0;
};

inline Refusal refusal_of(const Argument& argument) {
  Refusal refusal{.code = static_cast<uint32_t>(ErrorCode::usage) + 1, .value = argument.value,
                  .limit = argument.limit};
  argument.name.copy(refusal.argument, sizeof(refusal.argument) - 1);
  return refusal;
}

template <class... Args>
void require(bool ok, const Argument& argument, fmt::format_string<Args...> format, Args&&... args) {
  if (ok) return;
  throw BadArgument(fmt::format(format, std::forward<Args>(args)...), refusal_of(argument));
}

}  // namespace heddle
