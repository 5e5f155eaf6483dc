// Segments of a GPU's memory (segments.hpp), shared by file descriptor.
#pragma once

#include <memory>
#include <vector>

#include "memory/segments.hpp"

namespace heddle {

/// Memory of `device`. Every GPU of `readers`, those that ranks of this process use, reads and writes all segments, its own
/// and imported ones. Throws Error{system} where there is no driver.
std::shared_ptr<Segments> cuda_segments(int device, const std::vector<int>& readers);

}  // namespace heddle
