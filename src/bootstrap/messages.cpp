#include "bootstrap/messages.hpp"

#include "bootstrap/packing.hpp"

namespace heddle {
namespace {

void require(const Frame& frame, FrameKind kind) {
  if (frame.kind == kind) return;
  fail(ErrorCode::mismatch, "frame of kind {}, wanted {}", static_cast<int>(frame.kind), static_cast<int>(kind));
}

}  // namespace

Frame pack(const Contribution& contribution) {
  return {FrameKind::contribution, Packer().put(contribution.operation).put(contribution.bytes).bytes()};
}

Frame pack(const std::vector<Bytes>& gathered) {
  Packer packer;
  for (const Bytes& bytes : gathered) packer.put(bytes);
  return {FrameKind::gathered, packer.bytes()};
}

Frame pack(const Error& failure) {
  const auto code = static_cast<std::uint64_t>(failure.code());
  return {FrameKind::failed, Packer().put(code).put(std::string_view(failure.what())).bytes()};
}

Frame pack_gave_up(std::uint64_t round) { return {FrameKind::gave_up, Packer().put(round).bytes()}; }

Contribution unpack_contribution(const Frame& frame) {
  require(frame, FrameKind::contribution);
  Unpacker unpacker(frame.body);
  std::string operation = unpacker.text();
  Contribution contribution{std::move(operation), unpacker.blob()};
  unpacker.finish();
  return contribution;
}

std::vector<Bytes> unpack_gathered(const Frame& frame, int size) {
  require(frame, FrameKind::gathered);
  Unpacker unpacker(frame.body);
  std::vector<Bytes> gathered;
  for (int rank = 0; rank < size; ++rank) gathered.push_back(unpacker.blob());
  unpacker.finish();
  return gathered;
}

Error unpack_failure(const Frame& frame) {
  require(frame, FrameKind::failed);
  Unpacker unpacker(frame.body);
  const auto code = static_cast<ErrorCode>(unpacker.number());
  return {code, unpacker.text()};
}

std::uint64_t unpack_gave_up(const Frame& frame) {
  require(frame, FrameKind::gave_up);
  return Unpacker(frame.body).number();
}

std::uint64_t longest_gathered(int size) {
  return static_cast<std::uint64_t>(size) * (kMaxContribution + sizeof(std::uint64_t)) + kFrameSlack;
}

}  // namespace heddle
