// What a caller gets when a call cannot be done. The message names argument, value and legal values.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace heddle {

enum class ErrorCode {
  usage,      // an argument is wrong; nothing was sent, the object stays usable
  refused,    // another rank refused its own arguments of this call (VOID); the next call works
  mismatch,   // ranks disagree on the call or on the settings; reset() needed
  timeout,    // a peer missed the deadline; reset() needed
  faulted,    // the buffer met a fault earlier and waits for reset()
  destroyed,  // used after destroy(), or a peer destroyed its buffer
  overflow,   // more rows than the caller's capacity
  system      // the operating system said no
};

const char* name_of(ErrorCode);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace heddle

// A wrong argument. The message names the argument, its value and the legal values.
#define HEDDLE_CHECK(condition, ...)                                \
  do {                                                              \
    if (!(condition)) ::heddle::fail(::heddle::ErrorCode::usage, __VA_ARGS__); \
  } while (false)
