#include "bootstrap/in_process.hpp"

#include "base/error.hpp"
#include "bootstrap/rank_list.hpp"
#include "layout/limits.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
using Gathered = std::shared_ptr<const std::vector<Bytes>>;

// What the ranks share. A round is one collective call: ranks leave their bytes, the last to come completes it.
class Meeting {
 public:
  Meeting(int size, std::chrono::nanoseconds deadline)
      : size_(size), deadline_(deadline), present_(size), gone_(size) {}

  int size() const { return size_; }
  Gathered meet(int rank, std::string_view operation, std::span<const std::byte> mine);
  void leave(int rank);

 private:
  void arrive(int rank, std::string_view operation, std::span<const std::byte> mine);
  void complete();
  void break_up(ErrorCode, std::string reason);
  std::vector<int> missing() const;

  const int size_;
  const std::chrono::nanoseconds deadline_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<Bytes>> present_;
  std::vector<bool> gone_;
  std::string operation_;  // of the round now being gathered, named by the first rank to come
  int first_ = -1;
  int arrived_ = 0;
  std::uint64_t round_ = 0;
  Gathered last_;
  std::optional<Error> broken_;
};

Gathered Meeting::meet(int rank, std::string_view operation, std::span<const std::byte> mine) {
  std::unique_lock lock(mutex_);
  if (broken_) throw *broken_;  // a rank that comes late hears what the others heard
  const std::uint64_t round = round_;
  arrive(rank, operation, mine);
  const auto settled = [&] { return round_ != round || broken_; };
  if (!changed_.wait_until(lock, Clock::now() + deadline_, settled)) {
    break_up(ErrorCode::timeout, fmt::format("{}: rank {} waited {} ms for ranks {}, which did not come", operation,
                                             rank, deadline_.count() / 1'000'000, rank_list(missing())));
  }
  // A completed round stands, whatever happened since.
  if (round_ == round) throw *broken_;
  return last_;
}

void Meeting::arrive(int rank, std::string_view operation, std::span<const std::byte> mine) {
  if (arrived_ == 0) {
    operation_ = operation;
    first_ = rank;
  }
  present_[rank].emplace(mine.begin(), mine.end());
  ++arrived_;
  const auto gone = std::find(gone_.begin(), gone_.end(), true) - gone_.begin();
  if (operation_ != operation) {
    break_up(ErrorCode::mismatch,
             fmt::format("rank {} calls '{}' while rank {} calls '{}'", first_, operation_, rank, operation));
  } else if (gone < size_) {
    break_up(ErrorCode::destroyed, fmt::format("{}: rank {} has left the group", operation, gone));
  } else if (arrived_ == size_) {
    complete();
  }
}

void Meeting::complete() {
  std::vector<Bytes> all;
  for (auto& bytes : present_) all.push_back(std::move(*bytes));
  last_ = std::make_shared<const std::vector<Bytes>>(std::move(all));
  present_.assign(size_, std::nullopt);
  arrived_ = 0;
  ++round_;
  changed_.notify_all();
}

void Meeting::break_up(ErrorCode code, std::string reason) {
  if (!broken_) broken_.emplace(code, reason);
  changed_.notify_all();
}

std::vector<int> Meeting::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (!present_[rank]) ranks.push_back(rank);
  }
  return ranks;
}

void Meeting::leave(int rank) {
  std::lock_guard lock(mutex_);
  gone_[rank] = true;
  if (arrived_ > 0) break_up(ErrorCode::destroyed, fmt::format("{}: rank {} has left the group", operation_, rank));
}

class InProcess final : public Bootstrap {
 public:
  InProcess(int rank, std::shared_ptr<Meeting> meeting) : rank_(rank), meeting_(std::move(meeting)) {}
  ~InProcess() override { meeting_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }

 private:
  std::vector<Bytes> exchange(std::string_view operation, std::span<const std::byte> mine) override {
    return *meeting_->meet(rank_, operation, mine);
  }

  int rank_;
  std::shared_ptr<Meeting> meeting_;
};

}  // namespace

std::vector<std::unique_ptr<Bootstrap>> in_process(int size, std::chrono::nanoseconds deadline) {
  HEDDLE_CHECK(size >= 1 && size <= kMaxRanks, "in_process: size is {}, must be 1 to {}", size, kMaxRanks);
  HEDDLE_CHECK(deadline.count() > 0, "in_process: deadline is {} ns, must be positive", deadline.count());
  auto meeting = std::make_shared<Meeting>(size, deadline);
  std::vector<std::unique_ptr<Bootstrap>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<InProcess>(rank, meeting));
  return ranks;
}

}  // namespace heddle
