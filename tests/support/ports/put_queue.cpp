#include "support/ports/put_queue.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace heddle::testing {

PutQueue::PutQueue(const PeerView& windows, const PeerView& heap, uint64_t seed)
    : windows_(windows), heap_(heap), dice_(seed) {
  // Some seeds hold back all rows, or all credits, or one neighbour.
  for (auto& by_peer : patience_) {
    for (int& moments : by_peer) moments = dice_.one_of({1, 4, 16, 64});
  }
}

std::byte* PutQueue::stage(int64_t bytes) {
  auto* memory = new std::byte[static_cast<size_t>(bytes)];
  std::memset(memory, 0xCD, static_cast<size_t>(bytes));  // what the sender leaves unwritten shows
  return memory;
}

void PutQueue::put(const Target& target, const std::byte* staged, int64_t bytes, int64_t counter) {
  post({.target = target, .bytes = std::unique_ptr<std::byte[]>(const_cast<std::byte*>(staged)), .size = bytes,
        .counter = counter, .n = 1});
}

void PutQueue::add(int peer, int64_t counter, int64_t n) {
  post({.target = {.peer = peer}, .counter = counter, .n = n});
}

void PutQueue::post(Put put) {
  const std::lock_guard lock(mutex_);
  put.due = moment_ + static_cast<uint64_t>(dice_.below(patience_[put.size > 0][put.target.peer % 2]));
  puts_.push_back(std::move(put));
  waiting_ = puts_.size();
}

void PutQueue::progress() {
  if (waiting_.load(std::memory_order_relaxed) == 0) return;
  std::vector<Put> due;
  {
    const std::lock_guard lock(mutex_);
    ++moment_;
    const auto later = std::partition(puts_.begin(), puts_.end(), [&](const Put& put) { return put.due > moment_; });
    due.assign(std::make_move_iterator(later), std::make_move_iterator(puts_.end()));
    puts_.erase(later, puts_.end());
    for (size_t i = due.size(); i > 1; --i) std::swap(due[i - 1], due[static_cast<size_t>(dice_.below(static_cast<int>(i)))]);
    waiting_ = puts_.size();
  }
  land(std::move(due));
}

void PutQueue::land_all() {
  std::vector<Put> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(puts_);
    waiting_ = 0;
  }
  land(std::move(all));
}

void PutQueue::land(std::vector<Put> puts) const {
  for (const Put& put : puts) {
    std::byte* window = windows_.windows[put.target.peer];
    std::byte* memory = put.target.segment == 0 ? window : heap_.windows[put.target.peer];
    if (put.size > 0) std::memcpy(memory + put.target.offset, put.bytes.get(), static_cast<size_t>(put.size));
    add_release(reinterpret_cast<uint64_t*>(window + put.counter), static_cast<uint64_t>(put.n));
  }
}

}  // namespace heddle::testing
