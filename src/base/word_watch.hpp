// Words that a device may set while no thread of the host waits for it. One thread of the process looks at all of them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace heddle {

/// While it lives: `tell()` is called, once, from a thread of the process, when the word has not been 0 for a while and
/// nobody has said noticed(); again after it was 0 in between. The thread ends with the last watch.
class WordWatch {
 public:
  /// How long a caller has to notice by itself, about.
  static constexpr std::chrono::milliseconds kPatience{250};

  WordWatch(std::shared_ptr<const uint64_t> word, std::function<void()> tell);
  /// Returns once tell() runs no more.
  ~WordWatch();
  WordWatch(const WordWatch&) = delete;

  /// Whoever must know knows.
  void noticed() { noticed_.store(true, std::memory_order_relaxed); }

 private:
  friend class Watcher;
  void look();

  const std::shared_ptr<const uint64_t> word_;
  const std::function<void()> tell_;
  std::atomic<bool> noticed_{false};
  int looks_ = 0;  // in a row at which the word was set
};

}  // namespace heddle
