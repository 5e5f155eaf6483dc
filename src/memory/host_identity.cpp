#include "memory/host_identity.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace heddle {

std::string host_identity() {
  if (const char* given = std::getenv("HEDDLE_HOST_ID")) return given;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  // Abstract sockets end at the network namespace.
  std::error_code ignored;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/net", ignored).string();
}

}  // namespace heddle
