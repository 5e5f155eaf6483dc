// Settings of benchmarks that are lists.
#pragma once

#include <cstdlib>
#include <vector>

namespace heddle::bench {

/// Numbers of an environment variable, by commas.
inline std::vector<int> listed(const char* name) {
  std::vector<int> numbers;
  const char* text = std::getenv(name);
  for (char* end = nullptr; text != nullptr && *text != 0; text = *end == ',' ? end + 1 : end) {
    numbers.push_back(static_cast<int>(std::strtol(text, &end, 10)));
    if (end == text) break;
  }
  return numbers;
}

}  // namespace heddle::bench
