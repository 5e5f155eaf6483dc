#include "memory/memfd.hpp"

#include "base/error.hpp"
#include "memory/mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace heddle {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL, Linux 6.3; some hosts refuse memory without it

}  // namespace

Descriptor make_sealed_memory(std::size_t bytes) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Descriptor memory(::memfd_create("heddle", kFlags | kNoExecSeal));
  if (!memory && errno == EINVAL) memory = Descriptor(::memfd_create("heddle", kFlags));
  if (!memory) fail(ErrorCode::system, "memfd_create: {}", errno_text());
  const std::size_t length = whole_pages(bytes);
  if (::ftruncate(memory.number(), static_cast<off_t>(length)) != 0) {
    fail(ErrorCode::system, "ftruncate of a window to {} bytes: {}", length, errno_text());
  }
  if (::fcntl(memory.number(), F_ADD_SEALS, kSeals) != 0) {
    fail(ErrorCode::system, "sealing a window of {} bytes: {}", length, errno_text());
  }
  return memory;
}

void check_sealed_memory(const Descriptor& memory, std::size_t bytes, int peer) {
  const int seals = ::fcntl(memory.number(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    fail(ErrorCode::mismatch, "the window of rank {} is not sealed: wanted seals {:#x}, seen {:#x}", peer, kSeals,
         seals < 0 ? 0 : seals);
  }
  struct stat status{};
  if (::fstat(memory.number(), &status) != 0) fail(ErrorCode::system, "fstat: {}", errno_text());
  if (status.st_size != static_cast<off_t>(whole_pages(bytes))) {
    fail(ErrorCode::mismatch, "the window of rank {} has {} bytes, wanted {}", peer, status.st_size,
         whole_pages(bytes));
  }
}

}  // namespace heddle
