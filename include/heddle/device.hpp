// Where memory lies.
#pragma once

#include <cstdint>
#include <string>

namespace heddle {

enum class DeviceKind : uint8_t { cpu = 0, cuda = 1 };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;  // of a GPU
  bool operator==(const Device&) const = default;
};

/// "cpu", "cuda:1".
std::string name_of(const Device&);

}  // namespace heddle
