#include "bootstrap/rank_list.hpp"

#include <fmt/format.h>

namespace heddle {

std::string rank_list(std::span<const int> ranks) {
  std::string text;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += text.empty() ? "" : ", ";
    text += first == last ? fmt::format("{}", ranks[first]) : fmt::format("{}-{}", ranks[first], ranks[last]);
    first = last + 1;
  }
  return text.empty() ? "none" : text;
}

}  // namespace heddle
