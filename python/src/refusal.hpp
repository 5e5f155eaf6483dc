// Calls whose arguments C++ cannot have: the other ranks make the call, so they are told.
#pragma once

#include <heddle/buffer.hpp>

#include <string>

#include "blocking.hpp"
#include "own_buffer.hpp"

namespace heddle::python {

using Refuse = void (Buffer::*)(std::string_view);

/// Messages begin with the argument's name; the other ranks are told that much.
inline std::string argument_of(const Error& error) {
  const std::string what = error.what();
  return error.code() == ErrorCode::usage ? what.substr(0, what.find(' ')) : "arguments";
}

/// Arrays(args...), or a refusal of the call if C++ cannot read one.
template <class Arrays, class... Args>
Arrays arrays_or_refusal(OwnBuffer& own, Refuse refuse, const Args&... args) {
  const auto tell = [&](const std::string& argument) {
    blocking(own.get(), [&](Buffer& buffer) { (buffer.*refuse)(argument); });
  };
  try {
    return Arrays(args...);
  } catch (const Error& error) {
    tell(argument_of(error));
    throw;
  } catch (nb::python_error&) {
    tell("arguments");
    throw;
  }
}

}  // namespace heddle::python
