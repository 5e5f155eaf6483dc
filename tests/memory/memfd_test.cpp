#include "memory/memfd.hpp"

#include "memory/mapping.hpp"
#include "support/errors.hpp"

#include <fcntl.h>
#include <sys/mman.h>

namespace heddle {
namespace {

using testing::error_of;
using testing::error_with;

constexpr std::size_t kBytes = 3 * 4096;

// A peer that could shrink a window would kill whoever touches its end.
TEST(Memfd, SizeAndSealsCannotBeChanged) {
  const Descriptor memory = make_sealed_memory(kBytes);
  for (const off_t length : {0, 4096, 1 << 20}) EXPECT_NE(::ftruncate(memory.number(), length), 0) << length;
  EXPECT_NE(::fcntl(memory.number(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  check_sealed_memory(memory, kBytes, 0);
}

TEST(Memfd, OutlivesItsDescriptor) {
  Descriptor memory = make_sealed_memory(kBytes);
  const Mapping first = map_shared(memory.number(), kBytes);
  const Mapping second = map_shared(memory.number(), kBytes);
  memory = Descriptor();
  first.get()[kBytes - 1] = std::byte{5};
  EXPECT_EQ(second.get()[kBytes - 1], std::byte{5});
}

TEST(Memfd, HasNoName) {
  const Descriptor memory = make_sealed_memory(kBytes);
  char target[64] = {};
  ASSERT_GT(::readlink(fmt::format("/proc/self/fd/{}", memory.number()).c_str(), target, sizeof target - 1), 0);
  EXPECT_STREQ(target, "/memfd:heddle (deleted)");
}

TEST(Memfd, OtherSizeIsRefused) {
  const Descriptor memory = make_sealed_memory(kBytes);
  EXPECT_THAT(error_of([&] { check_sealed_memory(memory, 2 * kBytes, 7); }),
              error_with(ErrorCode::mismatch, "rank 7", "12288", "24576"));
}

TEST(Memfd, UnsealedMemoryIsRefused) {
  const Descriptor memory(::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(memory.number(), kBytes), 0);
  EXPECT_THAT(error_of([&] { check_sealed_memory(memory, kBytes, 7); }),
              error_with(ErrorCode::mismatch, "rank 7", "not sealed"));
}

TEST(Memfd, OrdinaryFileIsRefused) {
  const Descriptor file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(error_of([&] { check_sealed_memory(file, kBytes, 7); }), error_with(ErrorCode::mismatch, "not sealed"));
}

}  // namespace
}  // namespace heddle
