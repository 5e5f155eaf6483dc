// Numbers and strings to bytes and back, for what ranks tell one another at start-up. Reading is bounded: a short or
// overlong message is an Error{mismatch}, never a read past its end. Ranks are of one byte order.
#pragma once

#include "bootstrap/bootstrap.hpp"

#include <cstdint>
#include <cstring>
#include <string>

namespace heddle {

class Packer {
 public:
  Packer& put(std::uint64_t number);
  Packer& put(std::string_view text);
  Packer& put(std::span<const std::byte> bytes);
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

/// Reads in the order of the puts. `bytes` must outlive it.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : rest_(bytes) {}
  std::uint64_t number();
  std::string text();
  Bytes blob();
  /// Throws unless everything was read.
  void finish() const;

 private:
  std::span<const std::byte> take(std::uint64_t count);

  std::span<const std::byte> rest_;
};

}  // namespace heddle
