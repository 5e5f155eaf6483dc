#include "bootstrap/packing.hpp"

#include "base/error.hpp"

namespace heddle {

Packer& Packer::put(std::uint64_t number) {
  const auto raw = std::as_bytes(std::span(&number, 1));
  bytes_.insert(bytes_.end(), raw.begin(), raw.end());
  return *this;
}

Packer& Packer::put(std::string_view text) { return put(std::as_bytes(std::span(text))); }

Packer& Packer::put(std::span<const std::byte> bytes) {
  put(std::uint64_t{bytes.size()});
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  return *this;
}

std::uint64_t Unpacker::number() {
  std::uint64_t value;
  std::memcpy(&value, take(sizeof value).data(), sizeof value);
  return value;
}

std::string Unpacker::text() {
  const auto raw = take(number());
  return {reinterpret_cast<const char*>(raw.data()), raw.size()};
}

Bytes Unpacker::blob() {
  const auto raw = take(number());
  return {raw.begin(), raw.end()};
}

void Unpacker::finish() const {
  if (!rest_.empty()) fail(ErrorCode::mismatch, "message of a peer: {} bytes more than expected", rest_.size());
}

std::span<const std::byte> Unpacker::take(std::uint64_t count) {
  if (count > rest_.size()) {
    fail(ErrorCode::mismatch, "message of a peer: wants {} bytes more, {} are left", count, rest_.size());
  }
  const auto taken = rest_.first(count);
  rest_ = rest_.subspan(count);
  return taken;
}

}  // namespace heddle
