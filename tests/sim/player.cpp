#include "sim/player.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>
#include <optional>

#include "sim/expected.hpp"
#include "sim/sanitizers.hpp"
#include "sim/sim_backend.hpp"
#include "support/buffer_access.hpp"
#include "support/dice.hpp"
#include "support/test_heap.hpp"

namespace heddle::testing {
namespace {

constexpr int64_t kHeapBytes = 16384;

/// One rank's part of a program.
class Actor {
 public:
  Actor(const Program& program, Universe& universe, int rank, bool watched, std::vector<std::string>& failures)
      : p_(program), universe_(universe), rank_(rank), watched_(watched), failures_(failures), expected_(program, rank),
        dice_(program.seed * 31 + static_cast<uint64_t>(rank)), buffer_(BufferAccess::make(parts())) {
    buffer_.set_allocator([this](DType dtype, std::vector<int64_t> shape) { return allocate(dtype, shape); });
    for (size_t batch = 0; batch < p_.batches.size(); ++batch) make_batch(static_cast<int>(batch));
  }

  void act() {
    for (const Segment& segment : p_.segments) {
      play_segment(segment);
      if (segment.dead == rank_) return universe_.die(rank_);  // if it has not put enough to die before
      if (segment.dead >= 0) members_.erase(std::find(members_.begin(), members_.end(), segment.dead));
      forget();
      if (segment.resets) reset();
    }
  }

 private:
  BufferParts parts() {
    BufferParts parts;
    parts.topo = {.rank = rank_, .world = p_.ranks, .experts = p_.experts};
    parts.config = {.experts = p_.experts, .max_tokens = p_.max_tokens, .timeout = std::chrono::nanoseconds(kTimeout),
                    .mask_late_peers = p_.mask_late};
    auto backend = make_sim_backend(universe_, rank_, watched_);
    backend_ = backend.get();
    parts.backend = std::move(backend);
    parts.window_bytes = p_.window_bytes();
    parts.in_place = p_.in_place;
    if (p_.in_place) {
      heap_ = std::make_shared<TestHeap>(universe_.heap(rank_), rank_ == 0 ? kHeapBytes / 64 : kHeapBytes);
      parts.heap = [heap = heap_](int64_t bytes) { return heap->allocate(bytes); };
    }
    return parts;
  }

  Tensor allocate(DType dtype, const std::vector<int64_t>& shape) {
    if (allocations_left_ >= 0 && allocations_left_-- == 0) throw std::bad_alloc();
    if (!watched_) return allocate_host(dtype, shape);
    Tensor tensor;
    tensor.view.dtype = dtype;
    tensor.view.shape = shape;
    tensor.owner = backend_->allocate(static_cast<size_t>(tensor.view.numel()) * size_of(dtype));
    tensor.view.data = tensor.owner.get();
    return tensor;
  }

  void make_batch(int number) {
    RankBatch mine = p_.batches[static_cast<size_t>(number)][static_cast<size_t>(rank_)];
    mine.ids.reserve(1);  // a tensor of no rows still has an address
    std::vector<float> x(static_cast<size_t>(std::max(mine.tokens, 1) * kHidden));
    for (int i = 0; i < mine.tokens * kHidden; ++i) {
      x[static_cast<size_t>(i)] = Expected::value(number, rank_, i / kHidden, i % kHidden);
    }
    ids_.push_back(std::move(mine));
    x_.push_back(std::move(x));
    RankBatch& kept = ids_.back();
    plans_.push_back(buffer_.plan(view_of(kept.ids.data(), DType::i32, {kept.tokens, p_.topk})));
  }

  void report(const std::string& what) { failures_.push_back(fmt::format("rank {}: {}", rank_, what)); }

  void play_segment(const Segment& segment) {
    segment_ = &segment;
    try {
      for (size_t at = 0; at < segment.steps.size(); ++at) {
        play_step(at, segment.steps[at]);
        while (dice_.one_in(2) && !hooks_.empty()) run_a_hook();
      }
      while (!hooks_.empty()) run_a_hook();
    } catch (const Error& error) {
      // Whoever is late or dead is named by those who waited for it.
      const bool legal = error.code() == ErrorCode::timeout || error.code() == ErrorCode::faulted;
      if (!segment.may_fault || !legal) report(error.what());
      else if (segment.dead >= 0 && rank_ != segment.dead) check_culprit(segment, error.what());
    }
  }

  void check_culprit(const Segment& segment, const std::string& message) {
    if (message.find(fmt::format("rank {}", segment.dead)) == std::string::npos) report("blames another: " + message);
  }

  void play_step(size_t at, const Step& step) {
    switch (step.what) {
      case Do::dispatch: return dispatch(at, step);
      case Do::combine: return combine(at, step);
      case Do::refuse: return refuse(step);
      case Do::starve: return starve(at, step);
      case Do::mask: if (step.rank == rank_) buffer_.mask(step.peer); return;
      case Do::stall: if (step.rank == rank_) universe_.sleep(rank_, 3 * kTimeout); return;
      case Do::die: if (step.rank == rank_) universe_.doom(rank_, step.puts); return;
    }
  }

  DispatchInput input_of(const Step& step) {
    const auto batch = static_cast<size_t>(step.batch);
    const int tokens = ids_[batch].tokens;
    return {.x = view_of(x_[batch].data(), DType::f32, {tokens, kHidden}),
            .weights = view_of(ids_[batch].weights.data(), DType::f32, {tokens, p_.topk})};
  }
  static DispatchOptions options_of(const Step& step) { return {.layout = step.layout, .fixed_size = step.fixed}; }

  void dispatch(size_t at, const Step& step) {
    const Plan& plan = plans_[static_cast<size_t>(step.batch)];
    if (!step.split) return keep(at, step, buffer_.dispatch(plan, input_of(step), options_of(step)));
    const auto split = buffer_.dispatch_send(plan, input_of(step), options_of(step));
    hooks_[at] = [=, this] {
      split.receive();
      keep(at, step, *split.result);
    };
  }

  /// The rank that lacks memory waits for the others' rows in a catch block, and drops them.
  void starve(size_t at, const Step& step) {
    if (rank_ != step.rank) return dispatch(at, step);
    constexpr int kTables = 2;  // made before anything is sent
    allocations_left_ = kTables;
    try {
      dispatch(at, step);
      report(fmt::format("step {}: a dispatch without memory gave a result", at));
    } catch (const std::bad_alloc&) {
    }
    allocations_left_ = -1;
  }

  void keep(size_t at, const Step& step, const Received& received) {
    check_masked(at, received.masked);
    if (const std::string wrong = expected_.check(step, received); !wrong.empty()) report(fmt::format("step {}: {}", at, wrong));
    results_[at] = received;
  }

  CombineInput combine_input(const Step& step) {
    const Received& received = results_.at(static_cast<size_t>(step.of));
    CombineInput input{.x = received.x.view};
    if (step.sum == Sum::late || step.sum == Sum::alone) input.weights = input_of(step).weights;
    return input;
  }

  void combine(size_t at, const Step& step) {
    finish(static_cast<size_t>(step.of));
    const Received received = results_.at(static_cast<size_t>(step.of));
    const CombineOptions options{.weighted = step.sum == Sum::at_owner};
    if (!step.split) return compare(at, step, received, buffer_.combine(received.handle, combine_input(step), options));
    const auto split = buffer_.combine_send(received.handle, combine_input(step), options);
    hooks_[at] = [=, this] {
      split.receive();
      compare(at, step, received, *split.result);
    };
  }

  void compare(size_t at, const Step& step, const Received& received, const Combined& combined) {
    check_masked(at, combined.masked);
    const std::string wrong = expected_.check(step, received, combined);
    if (!wrong.empty()) report(fmt::format("step {}: {}", at, wrong));
  }

  /// Nobody is masked without a cause, and whom this rank masked is.
  void check_masked(size_t at, const std::vector<int>& masked) {
    for (const int peer : masked) {
      const bool gone = std::find(members_.begin(), members_.end(), peer) == members_.end();
      if (!gone && !segment_->may_mask) report(fmt::format("step {}: rank {} is masked", at, peer));
    }
    for (int peer = 0; peer < p_.ranks; ++peer) {
      const bool gone = removed_gone_ && std::find(members_.begin(), members_.end(), peer) == members_.end();
      if (!gone || std::find(masked.begin(), masked.end(), peer) != masked.end()) continue;
      report(fmt::format("step {}: rank {} is gone, but not masked", at, peer));
    }
  }

  /// The refuser's call has a row of 12 bytes, or no arguments at all. Nobody gets a result, and all can go on.
  void refuse(const Step& step) {
    if (step.of >= 0) finish(static_cast<size_t>(step.of));
    std::optional<ErrorCode> code;
    try {
      if (rank_ == step.rank) refuse_here(step);
      else make_refused(step);
    } catch (const Error& error) {
      code = error.code();
    }
    if (rank_ == step.rank) {
      if (code && *code != ErrorCode::usage) throw Error(*code, "the refuser's own call ended so");
      return;
    }
    if (code && *code != ErrorCode::refused) throw Error(*code, "a refused call ended so");
    if (!code) report("a call that a rank refused gave a result");
  }

  void refuse_here(const Step& step) {
    if (step.of >= 0) return buffer_.refuse_combine("x.dtype");
    if (!step.split) return buffer_.refuse_dispatch("x.dtype");
    DispatchInput input = input_of(step);
    input.x.shape[1] = 3;
    buffer_.dispatch_send(plans_[static_cast<size_t>(step.batch)], input, options_of(step));
  }

  void make_refused(const Step& step) {
    const Plan& plan = plans_[static_cast<size_t>(step.batch)];
    if (step.of < 0) {
      if (step.split) buffer_.dispatch_send(plan, input_of(step), options_of(step)).receive();
      else buffer_.dispatch(plan, input_of(step), options_of(step));
      return;
    }
    const Handle handle = results_.at(static_cast<size_t>(step.of)).handle;
    const CombineOptions options{.weighted = step.sum == Sum::at_owner};
    if (step.split) buffer_.combine_send(handle, combine_input(step), options).receive();
    else buffer_.combine(handle, combine_input(step), options);
  }

  void run_a_hook() {
    auto at = hooks_.begin();
    std::advance(at, dice_.below(static_cast<int>(hooks_.size())));
    finish(at->first);
  }

  void finish(size_t step) {
    const auto at = hooks_.find(step);
    if (at == hooks_.end()) return;
    const auto hook = std::move(at->second);
    hooks_.erase(at);
    hook();
  }

  void forget() {
    hooks_.clear();
    results_.clear();
  }

  /// Members come when they come; whoever gave up waiting for them tries again.
  void reset() {
    std::vector<int> members = members_;
    if (static_cast<int>(members.size()) == p_.ranks) members.clear();  // all
    for (int attempt = 0; attempt < 40; ++attempt) {
      try {
        buffer_.reset(members);
        removed_gone_ = true;
        if (heap_) heap_->check_free_memory();
        return;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::timeout) return report(error.what());
      }
    }
    report("reset() never came to an end");
  }

  const Program& p_;
  Universe& universe_;
  int rank_;
  bool watched_;
  std::vector<std::string>& failures_;
  Expected expected_;
  Dice dice_;
  Backend* backend_ = nullptr;
  std::shared_ptr<TestHeap> heap_;
  Buffer buffer_;
  std::vector<RankBatch> ids_;
  std::vector<std::vector<float>> x_;
  std::vector<Plan> plans_;
  std::vector<int> members_ = all_ranks();
  bool removed_gone_ = false;
  const Segment* segment_ = nullptr;
  int allocations_left_ = -1;  // -1: any number
  std::map<size_t, Received> results_;
  std::map<size_t, std::function<void()>> hooks_;

  std::vector<int> all_ranks() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < p_.ranks; ++rank) ranks.push_back(rank);
    return ranks;
  }
};

/// Some seeds hold back one rank, or all rows, or all credits, for long.
class SeededChoices : public Choices {
 public:
  SeededChoices(uint64_t seed, int ranks) : dice_(seed) {
    for (int rank = 0; rank < ranks; ++rank) run_weight_.push_back(dice_.one_of({1, 4, 16, 64}));
    for (auto& by_peer : land_weight_) {
      for (int& weight : by_peer) weight = dice_.one_of({1, 1, 8, 64});
    }
  }

  size_t choose(const std::vector<Action>& actions) override {
    int total = 0;
    for (const Action& action : actions) total += weight(action);
    int left = dice_.below(total);
    size_t chosen = 0;
    while (left >= weight(actions[chosen])) left -= weight(actions[chosen++]);
    return chosen;
  }

 private:
  int weight(const Action& action) const {
    if (action.what == Action::What::run) return run_weight_[static_cast<size_t>(action.rank)];
    return land_weight_[action.has_bytes][(action.rank + action.peer) % 2];
  }

  Dice dice_;
  std::vector<int> run_weight_;
  std::array<std::array<int, 2>, 2> land_weight_{};
};

}  // namespace

UniverseSettings Player::settings_of(const Program& p, bool watched) {
  return {.ranks = p.ranks, .window_bytes = p.window_bytes(), .heap_bytes = p.in_place ? kHeapBytes : 0,
          .timeout_ns = kTimeout, .direct = p.direct, .halves = p.halves, .timeless = watched,
          .pauses = watched ? 0 : p.seed + 1};
}

Player::Player(const Program& program, bool watched)
    : program_(program), watched_(watched), failures_(static_cast<size_t>(program.ranks)),
      universe_(settings_of(program, watched)) {
  // A heap keeps a page to compare with, made by whoever is the first to look: better here than in one of the ranks.
  std::byte byte;
  std::make_shared<TestHeap>(&byte, 1)->check_free_memory();
}

Player::~Player() = default;

void Player::start() {
  universe_.start([this](int rank) {
    auto& failures = failures_[static_cast<size_t>(rank)];
    try {
      Actor(program_, universe_, rank, watched_, failures).act();
    } catch (const std::exception& error) {
      failures.push_back(fmt::format("rank {}: {}", rank, error.what()));
    }
  });
}

std::string Player::failures() {
  universe_.join();
  std::string all = universe_.trouble();
  for (int rank = 0; rank < program_.ranks; ++rank) {
    if (universe_.is_dead(rank)) continue;
    for (const std::string& failure : failures_[static_cast<size_t>(rank)]) all += (all.empty() ? "" : "\n") + failure;
  }
  return all;
}

namespace {

/// Rows in place of a rank that masks their receiver may land while the receiver clears them (I14): a race, and meant.
bool is_racy(const Program& program) {
  const auto masks = [](const Segment& segment) {
    return std::any_of(segment.steps.begin(), segment.steps.end(), [](const Step& s) { return s.what == Do::mask; });
  };
  return program.in_place && std::any_of(program.segments.begin(), program.segments.end(), masks);
}

}  // namespace

std::string play(const Program& program) {
  if (current_tsan_fiber() != nullptr && is_racy(program)) return {};
  Player player(program);
  SeededChoices choices(program.seed * 7919 + 3, program.ranks);
  player.start();
  Universe& universe = player.universe();
  while (!universe.actions().empty()) universe.perform(choices.choose(universe.actions()));
  return player.failures();
}

uint64_t sim_seed(uint64_t otherwise) {
  const char* seed = std::getenv("HEDDLE_SIM_SEED");
  return seed == nullptr ? otherwise : std::strtoull(seed, nullptr, 10);
}

}  // namespace heddle::testing
