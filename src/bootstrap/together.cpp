#include "bootstrap/together.hpp"

#include "bootstrap/packing.hpp"

namespace heddle {

void fail_together(Bootstrap& bootstrap, std::string_view operation, const std::optional<Error>& mine) {
  Packer packer;
  if (mine) packer.put(static_cast<std::uint64_t>(mine->code())).put(std::string_view(mine->what()));
  const auto all = bootstrap.all_gather(packer.bytes(), operation);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    Unpacker unpacker(all[rank]);
    const auto code = static_cast<ErrorCode>(unpacker.number());
    fail(code, "{} failed on rank {}: {}", operation, rank, unpacker.text());
  }
}

}  // namespace heddle
