#include "cpu/crew.hpp"

namespace heddle {

Crew::Crew(int threads) : barrier_(threads) {
  for (int index = 1; index < threads; ++index) helpers_.emplace_back([this, index] { serve(index); });
}

Crew::~Crew() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Crew::start(std::function<void(const Team&)> step) {
  {
    const std::lock_guard lock(mutex_);
    step_ = std::move(step);
    running_ = static_cast<int>(helpers_.size());
    ++round_;
  }
  changed_.notify_all();
}

void Crew::finish() {
  std::unique_lock lock(mutex_);
  sleep_until(changed_, lock, [this] { return running_ == 0; });
  step_ = nullptr;
}

void Crew::serve(int index) {
  uint64_t served = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return leaving_ || round_ != served; });
    if (leaving_) return;
    served = round_;
    const auto* step = &step_;
    lock.unlock();
    (*step)(Team(index, size(), barrier_));
    lock.lock();
    if (--running_ == 0) changed_.notify_all();
  }
}

}  // namespace heddle
