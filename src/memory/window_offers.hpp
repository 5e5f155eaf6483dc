// Windows that a rank offers to the other threads of its process. A number, not a pointer, crosses the bootstrap, so that an
// importer that comes late, after the exporter gave up, finds nothing instead of freed memory.
#pragma once

#include <cstdint>
#include <string>

#include "memory/mapping.hpp"

namespace heddle {

/// On offer as long as it lives; it does not keep the window alive.
class WindowOffer {
 public:
  explicit WindowOffer(const Mapping&);
  ~WindowOffer();
  WindowOffer(const WindowOffer&) = delete;
  std::uint64_t number() const { return number_; }

 private:
  std::uint64_t number_;
};

/// nullptr if it is no longer on offer.
Mapping find_window(std::uint64_t number);

/// Equal for threads of one process only.
std::string process_identity();

}  // namespace heddle
