#include "bootstrap/callable.hpp"

#include "base/error.hpp"
#include "bootstrap/packing.hpp"
#include "layout/limits.hpp"

namespace heddle {
namespace {

class Callable final : public Bootstrap {
 public:
  Callable(int rank, int size, AllGather all_gather) : rank_(rank), size_(size), all_gather_(std::move(all_gather)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  std::vector<Bytes> exchange(std::string_view operation, std::span<const std::byte> mine) override;
  Bytes open(int peer, std::string_view operation, const Bytes& message) const;

  int rank_;
  int size_;
  AllGather all_gather_;
};

// The operation travels along, so that ranks in different calls are told apart here as elsewhere.
std::vector<Bytes> Callable::exchange(std::string_view operation, std::span<const std::byte> mine) {
  const Bytes message = Packer().put(operation).put(mine).bytes();
  const std::vector<Bytes> messages = all_gather_(message);
  if (messages.size() != static_cast<std::size_t>(size_)) {
    fail(ErrorCode::mismatch, "{}: the all-gather returned {} entries to rank {}, wanted one for each of {} ranks",
         operation, messages.size(), rank_, size_);
  }
  if (messages[rank_] != message) {
    fail(ErrorCode::mismatch,
         "{}: the all-gather returned at place {} other bytes than rank {} gave; entries must be in "
         "the order of ranks",
         operation, rank_, rank_);
  }
  std::vector<Bytes> all;
  for (int peer = 0; peer < size_; ++peer) all.push_back(open(peer, operation, messages[peer]));
  return all;
}

Bytes Callable::open(int peer, std::string_view operation, const Bytes& message) const {
  Unpacker unpacker(message);
  const std::string theirs = unpacker.text();
  if (theirs != operation) {
    fail(ErrorCode::mismatch, "rank {} calls '{}' while rank {} calls '{}'", rank_, operation, peer, theirs);
  }
  Bytes bytes = unpacker.blob();
  unpacker.finish();
  return bytes;
}

}  // namespace

std::unique_ptr<Bootstrap> callable(int rank, int size, AllGather all_gather) {
  HEDDLE_CHECK(size >= 1 && size <= kMaxRanks, "callable: size is {}, must be 1 to {}", size, kMaxRanks);
  HEDDLE_CHECK(rank >= 0 && rank < size, "callable: rank is {}, must be 0 to {}", rank, size - 1);
  HEDDLE_CHECK(all_gather != nullptr, "callable: the all-gather of rank {} is empty", rank);
  return std::make_unique<Callable>(rank, size, std::move(all_gather));
}

}  // namespace heddle
