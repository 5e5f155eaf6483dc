#include "base/log.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace heddle {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"error", "warn", "info", "debug"};

LogLevel level_from_env() {
  const char* word = std::getenv("HEDDLE_LOG");
  for (std::size_t i = 0; word != nullptr && i < kNames.size(); ++i) {
    if (kNames[i] == word) return static_cast<LogLevel>(i);
  }
  return LogLevel::warn;
}

}  // namespace

LogLevel log_level() {
  static const LogLevel level = level_from_env();
  return level;
}

void log_line(LogLevel level, std::string_view text) {
  const std::string line = fmt::format("heddle {}: {}\n", kNames[static_cast<std::size_t>(level)], text);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace heddle
