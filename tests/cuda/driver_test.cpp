// What the library says where it cannot run. Needs no GPU and no driver.
#include <gmock/gmock.h>

#include "memory/cuda_driver.hpp"
#include "memory/cuda_vmm.hpp"

namespace heddle {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Driver, TooOldIsSaidWithWhatIsNeeded) {
  EXPECT_THAT(driver_problem(12080), AllOf(HasSubstr("for CUDA 12.8"), HasSubstr("driver 580 or newer (CUDA 13.0)")));
  EXPECT_EQ(driver_problem(13000), "");
  EXPECT_EQ(driver_problem(13020), "");
}

TEST(Driver, NoneIsSaidWithWhatIsNeeded) {
  EXPECT_THAT(driver_problem(0), AllOf(HasSubstr("no CUDA driver"), HasSubstr("driver 580 or newer")));
}

// A library with kernels loads on a machine without a driver: this program has.
TEST(Driver, AsksWithoutFailing) {
  const std::string problem = cuda_problem();
  if (problem.empty()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(problem, HasSubstr("CUDA driver"));
}

}  // namespace
}  // namespace heddle
