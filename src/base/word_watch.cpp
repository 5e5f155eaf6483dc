#include "base/word_watch.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace heddle {

/// Of the process; never destroyed, as watches may live as long as it does.
class Watcher {
 public:
  static Watcher& of_process() {
    static auto* const watcher = new Watcher;
    return *watcher;
  }

  void add(WordWatch* watch) {
    const std::lock_guard turn(turns_);
    const std::lock_guard lock(mutex_);
    watches_.push_back(watch);
    if (watches_.size() == 1) thread_ = std::thread([this] { run(); });
  }

  void remove(WordWatch* watch) {
    const std::lock_guard turn(turns_);
    std::unique_lock lock(mutex_);
    std::erase(watches_, watch);
    if (!watches_.empty()) return;
    lock.unlock();
    changed_.notify_all();
    thread_.join();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, WordWatch::kPatience, [this] { return watches_.empty(); })) {
      for (WordWatch* watch : watches_) watch->look();
    }
  }

  std::mutex turns_;  // of add() and remove(): a thread is joined before the next starts
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<WordWatch*> watches_;
  std::thread thread_;
};

WordWatch::WordWatch(std::shared_ptr<const uint64_t> word, std::function<void()> tell)
    : word_(std::move(word)), tell_(std::move(tell)) {
  Watcher::of_process().add(this);
}

WordWatch::~WordWatch() { Watcher::of_process().remove(this); }

/// At the second look: one that a caller is about to notice is left to it.
void WordWatch::look() {
  const uint64_t value = std::atomic_ref<uint64_t>(const_cast<uint64_t&>(*word_)).load(std::memory_order_acquire);
  if (value == 0) {
    looks_ = 0;
    noticed_.store(false, std::memory_order_relaxed);
    return;
  }
  if (looks_ < 3) ++looks_;
  if (looks_ == 2 && !noticed_.load(std::memory_order_relaxed)) tell_();
}

}  // namespace heddle
