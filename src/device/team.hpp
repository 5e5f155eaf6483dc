// A few CPU threads that work on one step together, with a real barrier (which ThreadSanitizer sees).
#pragma once

#include <barrier>

namespace heddle {

class Team {
 public:
  Team(int index, int size, std::barrier<>& barrier) : index_(index), size_(size), barrier_(&barrier) {}
  int index() const { return index_; }
  int size() const { return size_; }
  int lane() const { return 0; }
  int lanes() const { return 1; }
  void sync() const { barrier_->arrive_and_wait(); }
  void worker_sync() const {}

 private:
  int index_;
  int size_;
  std::barrier<>* barrier_;
};

}  // namespace heddle
