#include "bootstrap/bootstrap.hpp"

#include "base/error.hpp"

namespace heddle {

std::vector<Bytes> Bootstrap::all_gather(std::span<const std::byte> mine, std::string_view operation) {
  if (broken_) fail(ErrorCode::faulted, "{}: this group of ranks broke earlier: {}", operation, *broken_);
  try {
    return exchange(operation, mine);
  } catch (const std::exception& error) {
    broken_ = error.what();
    throw;
  }
}

}  // namespace heddle
