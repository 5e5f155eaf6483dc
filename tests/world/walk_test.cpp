// Many calls of many shapes on one buffer: split and unsplit, two in flight, hooks in any order on every rank, hooks never
// called, results combined twice or never. Nothing is cleaned in between.
#include <fmt/format.h>

#include <algorithm>

#include "support/dice.hpp"
#include "world/cases.hpp"
#include "world/compare.hpp"
#include "world/hows.hpp"
#include "world/inputs.hpp"

namespace heddle::testing {
namespace {

enum class Do { dispatch, dispatch_again, dispatch_split, combine, combine_split };

/// A call that all ranks make. `of`: for a combine and a second dispatch, the number of the step that gives the handle.
struct Step {
  Do what;
  size_t which;  // case
  size_t of;
};

struct Program {
  std::vector<Case> cases;
  std::vector<Meaning> meanings;
  std::vector<Step> steps;
  WorldSettings settings;
};

/// Cases that one buffer can take: the same ranks and experts, each with its own batch, width and top-k.
std::vector<Case> draw_cases(Dice& dice) {
  const int ranks = dice.one_of({2, 2, 3, 4});
  const int experts = dice.one_of({3, 8, 13});
  std::vector<Case> cases;
  while (cases.size() < 4) {
    Case c = any_case(dice.word());
    if (c.by_rank_map || c.layout == Layout::token_major) c.sum = Sum::plain;
    c.world.ranks = ranks;
    c.world.experts = experts;
    c.world.topk = std::max(1, c.world.topk);
    c.max_tokens = c.world.tokens;
    c.split_dispatch = true;  // outputs and window as a split call needs them
    c.split_combine = c.sum != Sum::late;
    c.slots = 0;
    cases.push_back(c);
  }
  return cases;
}

bool is_dispatch(Do what) { return what != Do::combine && what != Do::combine_split; }

std::vector<Step> draw_steps(Dice& dice, const std::vector<Case>& cases, size_t count) {
  std::vector<Step> steps;
  std::vector<size_t> dispatched;
  while (steps.size() < count) {
    const Do what = dice.one_of({Do::dispatch, Do::dispatch_again, Do::dispatch_split, Do::dispatch_split, Do::combine,
                                 Do::combine_split});
    if (what == Do::dispatch || what == Do::dispatch_split) {
      steps.push_back({what, static_cast<size_t>(dice.below(static_cast<int>(cases.size()))), 0});
      dispatched.push_back(steps.size() - 1);
      continue;
    }
    if (dispatched.empty()) continue;
    const size_t of = dice.one_of(dispatched);
    const Case& c = cases[steps[of].which];
    if (what == Do::combine && c.sum == Sum::alone) continue;
    if (what == Do::combine_split && c.sum == Sum::late) continue;
    steps.push_back({what, steps[of].which, of});
    if (what == Do::dispatch_again) dispatched.push_back(steps.size() - 1);
  }
  return steps;
}

Program draw_program(uint64_t seed, size_t num_steps) {
  Dice dice(seed);
  Program program;
  program.cases = draw_cases(dice);
  for (const Case& c : program.cases) {
    program.meanings.push_back(meaning_of(c));
    const WorldSettings settings = settings_for(c);
    WorldSettings& all = program.settings;
    const int64_t bytes = std::max(all.window_bytes, settings.window_bytes);
    const int tokens = std::max(all.config.max_tokens, settings.config.max_tokens);
    all = settings;
    all.window_bytes = bytes;
    all.config.max_tokens = tokens;
  }
  program.steps = draw_steps(dice, program.cases, num_steps);
  program.settings.seed = seed;
  program.settings.story = fmt::format("walk {}", seed);
  return program;
}

/// One rank on its way through the program.
class Walker {
 public:
  Walker(Rank& r, const Program& program) : r_(r), program_(program), dice_(program.settings.seed * 31 + r.index()) {
    for (size_t i = 0; i < program.cases.size(); ++i) {
      inputs_.push_back(std::make_unique<Inputs>(program.cases[i], program.meanings[i], r.index()));
      plans_.push_back(inputs_.back()->plan(r.buffer()));
    }
    results_.resize(program.steps.size());
  }

  void walk() {
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      make(i);
      if (dice_.one_in(2)) run_a_hook();
    }
    while (!hooks_.empty()) run_a_hook();
  }

 private:
  struct Hook {
    size_t step;
    std::function<void()> finish;
  };

  void make(size_t i) {
    const Step& step = program_.steps[i];
    const Inputs& in = *inputs_[step.which];
    if (!is_dispatch(step.what) || step.what == Do::dispatch_again) finish(step.of);
    switch (step.what) {
      case Do::dispatch:
        return keep(i, r_.buffer().dispatch(plans_[step.which], in.dispatch_input(), options_of(step)));
      case Do::dispatch_again:
        return keep(i, r_.buffer().dispatch(results_[step.of], in.dispatch_input(), options_of(step)));
      case Do::dispatch_split: {
        const auto split = r_.buffer().dispatch_send(plans_[step.which], in.dispatch_input(), in.dispatch_options());
        return add_hook(i, [=, this] {
          split.receive();
          keep(i, *split.result);
        });
      }
      case Do::combine: return check(i, r_.buffer().combine(results_[step.of], in.combine_input(), in.combine_options()));
      case Do::combine_split: {
        const auto split = r_.buffer().combine_send(results_[step.of], in.combine_input(), in.combine_options());
        return add_hook(i, [=, this] {
          split.receive();
          check(i, *split.result);
        });
      }
    }
  }

  /// All outputs have their worst-case size, so one meaning is right for all.
  DispatchOptions options_of(const Step& step) const {
    DispatchOptions options = inputs_[step.which]->dispatch_options();
    options.fixed_size = true;
    return options;
  }

  void keep(size_t i, const Received& received) {
    const size_t which = program_.steps[i].which;
    const Meaning& m = program_.meanings[which];
    expect_received(received, m.received[r_.index()], program_.cases[which], m, r_.index());
    results_[i] = received.handle;
  }

  void check(size_t i, const Combined& combined) {
    expect_combined(combined, program_.meanings[program_.steps[i].which].combined[r_.index()]);
  }

  void add_hook(size_t step, std::function<void()> finish) {
    if (dice_.one_in(6)) return pending_.push_back({step, std::move(finish)});  // not of its own accord
    hooks_.push_back({step, std::move(finish)});
  }

  void run_a_hook() {
    if (hooks_.empty()) return;
    const auto at = hooks_.begin() + dice_.below(static_cast<int>(hooks_.size()));
    const Hook hook = *at;
    hooks_.erase(at);
    hook.finish();
  }

  /// Before a handle is used its hook must have run.
  void finish(size_t step) {
    for (auto* list : {&hooks_, &pending_}) {
      const auto at = std::find_if(list->begin(), list->end(), [&](const Hook& hook) { return hook.step == step; });
      if (at == list->end()) continue;
      const Hook hook = *at;
      list->erase(at);
      return hook.finish();
    }
  }

  Rank& r_;
  const Program& program_;
  Dice dice_;
  std::vector<std::unique_ptr<Inputs>> inputs_;
  std::vector<Plan> plans_;
  std::vector<Handle> results_;
  std::vector<Hook> hooks_;
  std::vector<Hook> pending_;
};

constexpr uint64_t kWalks = 6;
constexpr size_t kCalls = 40;

class Walk : public InEveryCell {};

TEST_P(Walk, EveryCallIsExact) {
  for (uint64_t seed = world_seed() * 100; seed < world_seed() * 100 + kWalks; ++seed) {
    const Program program = draw_program(seed, kCalls);
    World(GetParam(), program.settings).run([&](Rank& r) { Walker(r, program).walk(); });
    if (HasFailure()) FAIL() << name_of(GetParam()) << ", seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Walk, ::testing::ValuesIn(all_hows()), cell_name);

}  // namespace
}  // namespace heddle::testing
