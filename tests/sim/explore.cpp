#include "sim/explore.hpp"

#include <fmt/format.h>

#include <memory>
#include <unordered_set>
#include <vector>

#include "sim/player.hpp"

namespace heddle::testing {
namespace {

class Explorer {
 public:
  Explorer(const Program& program, uint64_t max_states) : program_(program), max_states_(max_states) {}

  Exploration explore() {
    restart();
    visit();
    while (!path_.empty() && result_.failure.empty() && result_.states <= max_states_) {
      Branch& last = path_.back();
      if (last.next == last.choices) {
        path_.pop_back();
        stale_ = true;
        continue;
      }
      const size_t choice = last.next++;
      if (stale_) replay();
      take(choice);
      ++result_.transitions;
      visit();
    }
    result_.complete = path_.empty() && result_.failure.empty();
    return result_;
  }

 private:
  struct Branch {
    size_t choices = 0;
    size_t next = 0;  // one more than the choice that the path takes
  };

  void restart() {
    player_ = std::make_unique<Player>(program_, /*watched=*/true);
    player_->start();
    stale_ = false;
  }

  void replay() {
    restart();
    for (size_t i = 0; i + 1 < path_.size(); ++i) take(path_[i].next - 1);
  }

  void take(size_t choice) {
    player_->universe().actions();
    player_->universe().perform(choice);
  }

  /// Goes on from here, unless the state is known or all is over.
  void visit() {
    Universe& universe = player_->universe();
    const size_t choices = universe.actions().size();
    universe.join();
    stale_ = !known_.insert(universe.hash()).second;
    if (stale_) return;
    ++result_.states;
    if (choices > 0) return path_.push_back({.choices = choices});
    ++result_.ends;
    stale_ = true;
    if (const std::string failures = player_->failures(); !failures.empty()) result_.failure = failures + describe_path();
  }

  std::string describe_path() const {
    std::string path = "\nchoices:";
    for (const Branch& branch : path_) path += fmt::format(" {}", branch.next - 1);
    return path;
  }

  const Program& program_;
  uint64_t max_states_;
  std::unique_ptr<Player> player_;
  std::vector<Branch> path_;
  bool stale_ = false;  // the player is not where the path ends
  std::unordered_set<uint64_t> known_;
  Exploration result_;
};

}  // namespace

Exploration explore(const Program& program, uint64_t max_states) { return Explorer(program, max_states).explore(); }

}  // namespace heddle::testing
