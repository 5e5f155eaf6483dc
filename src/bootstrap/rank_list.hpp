// Ranks as people read them: "0-3, 7".
#pragma once

#include <span>
#include <string>

namespace heddle {

/// `ranks` ascending; "none" if empty.
std::string rank_list(std::span<const int> ranks);

}  // namespace heddle
