#include "support/shared_blocks.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <stdexcept>

#include "base/math.hpp"
#include "layout/carver.hpp"

namespace heddle::testing {
namespace {

std::shared_ptr<std::byte> on_the_heap(int64_t bytes) {
  constexpr std::align_val_t kAlign{static_cast<size_t>(kCellAlign)};
  const auto size = static_cast<size_t>(bytes);
  std::shared_ptr<std::byte> block(new (kAlign) std::byte[size], [](std::byte* memory) {
    operator delete[](memory, kAlign);
  });
  std::memset(block.get(), 0, size);
  return block;
}

std::shared_ptr<std::byte> before_a_forbidden_page(int64_t bytes) {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t room = round_up(bytes, page);
  const auto size = static_cast<size_t>(room + page);
  void* mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::runtime_error("shared_blocks: mmap failed");
  auto* first = static_cast<std::byte*>(mapped);
  ::mprotect(first + room, static_cast<size_t>(page), PROT_NONE);
  std::byte* block = first + round_up(room - bytes - kCellAlign + 1, kCellAlign);
  return {block, [first, size](std::byte*) { ::munmap(first, size); }};
}

}  // namespace

SharedBlocks::SharedBlocks(Sharing sharing, const std::vector<int64_t>& bytes) : bytes_(bytes) {
  for (const int64_t size : bytes) {
    blocks_.push_back(sharing == Sharing::threads ? on_the_heap(size) : before_a_forbidden_page(size));
  }
}

PeerView SharedBlocks::seen_by(int rank) const {
  PeerView view{};
  view.count = static_cast<int>(blocks_.size());
  view.rank = rank;
  for (int peer = 0; peer < view.count; ++peer) view.windows[peer] = block(peer);
  return view;
}

}  // namespace heddle::testing
