// Lines on stderr for whoever runs the program. HEDDLE_LOG=error|warn|info|debug says how many; the default is warn.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace heddle {

enum class LogLevel { error, warn, info, debug };

/// Read once from HEDDLE_LOG; an unknown word counts as warn.
LogLevel log_level();

/// Writes one line in one call, so that lines of many ranks do not mix. Any thread.
void log_line(LogLevel, std::string_view text);

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level <= log_level()) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::error, format, std::forward<Args>(args)...);
}

template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::warn, format, std::forward<Args>(args)...);
}

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::info, format, std::forward<Args>(args)...);
}

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::debug, format, std::forward<Args>(args)...);
}

}  // namespace heddle
