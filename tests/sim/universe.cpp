// Compiled without ThreadSanitizer (Sim.cmake): this state belongs to all fibers. What a put writes is still seen, as memcpy
// and add_count() are.
#include "sim/universe.hpp"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "sim/fiber.hpp"
#include "sim/hash.hpp"
#include "sim/sim_backend.hpp"

namespace heddle::testing {
namespace {

constexpr int kIdleLimit = 2000;   // quarters of a deadline without an event
constexpr int64_t kStepLimit = 2'000'000;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;

Memory make_memory(int64_t bytes) {
  const auto size = static_cast<size_t>((bytes + 127) / 128 * 128);
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(128, size > 0 ? size : 128)));
  std::memset(memory.get(), 0, size);
  return memory;
}

struct Put {
  int from = 0;
  Universe::Place to;
  std::byte* bytes = nullptr;
  int64_t size = 0;
  int64_t counter = 0;
  int64_t n = 1;
  bool bytes_landed = false;
};

struct Member {
  std::unique_ptr<Fiber> fiber;
  Memory window;
  Memory heap;
  Memory nowhere;  // where the dead store while their stacks unwind
  std::function<uint64_t()> watch;
  bool awake = true;  // something has happened since it last looked
  bool dead = false;
  uint64_t wakes_at = 0;
  int pending = 0;
  int puts_left = -1;
};

}  // namespace

struct Universe::State {
  UniverseSettings settings;
  std::vector<Member> members;
  std::vector<Put> puts;
  std::vector<Action> actions;
  std::vector<size_t> subject;  // of each action: index of its put
  uint64_t now = 1;
  uint64_t pauses = 0;
  int idle = 0;
  int64_t steps = 0;
  bool tearing_down = false;
  std::string trouble;

  bool is_over(const Member& m) const { return m.dead || m.fiber->has_ended(); }
  bool all_over() const {
    for (const Member& m : members) {
      if (!is_over(m)) return false;
    }
    return true;
  }

  void list_actions() {
    actions.clear();
    subject.clear();
    for (size_t rank = 0; rank < members.size(); ++rank) {
      const Member& m = members[rank];
      if (is_over(m) || !m.awake || m.wakes_at > now) continue;
      actions.push_back({.what = Action::What::run, .rank = static_cast<int>(rank), .peer = static_cast<int>(rank)});
      subject.push_back(0);
    }
    for (size_t i = 0; i < puts.size(); ++i) {
      const Put& put = puts[i];
      const bool bytes_first = settings.halves && put.size > 0 && !put.bytes_landed;
      actions.push_back({.what = bytes_first ? Action::What::bytes : Action::What::count, .rank = put.from,
                         .peer = put.to.peer, .has_bytes = put.size > 0});
      subject.push_back(i);
    }
  }

  void pass_time() {
    now += settings.timeout_ns / 4 + 1;
    for (Member& m : members) m.awake = true;
  }

  std::byte* memory_of(const Place& place) const {
    const Member& m = members[static_cast<size_t>(place.peer)];
    return (place.segment == 0 ? m.window : m.heap).get() + place.offset;
  }

  void land(size_t index, bool only_bytes) {
    Put& put = puts[index];
    Member& sender = members[static_cast<size_t>(put.from)];
    Member& receiver = members[static_cast<size_t>(put.to.peer)];
    sender.fiber->begin_acting_for();
    if (put.size > 0 && !put.bytes_landed) {
      std::memcpy(memory_of(put.to), put.bytes, static_cast<size_t>(put.size));
      delete[] put.bytes;
      put.bytes = nullptr;
      put.bytes_landed = true;
    }
    if (!only_bytes) {
      add_count(reinterpret_cast<uint64_t*>(receiver.window.get() + put.counter), static_cast<uint64_t>(put.n));
    }
    sender.fiber->end_acting_for();
    if (only_bytes) return;
    receiver.awake = true;
    if (--sender.pending == 0) sender.awake = true;
    puts[index] = puts.back();
    puts.pop_back();
  }

  /// Stops here for good.
  void stop(Member& m) {
    m.dead = true;
    while (!tearing_down) m.fiber->yield();
  }

  void count_put(int rank) {
    Member& m = members[static_cast<size_t>(rank)];
    if (m.puts_left < 0 || m.puts_left-- > 0) return;
    stop(m);
  }

  bool pauses_here() {
    if (pauses == 0) return false;
    pauses = mix(pauses, 1);
    return (pauses >> 20) % 4 == 0;
  }

  /// Others may act here, though this rank could go on.
  void pause(int rank) {
    if (!pauses_here() || tearing_down) return;
    members[static_cast<size_t>(rank)].awake = true;
    members[static_cast<size_t>(rank)].fiber->yield();
  }
};

Universe::Universe(const UniverseSettings& settings) : state_(std::make_unique<State>()) {
  state_->settings = settings;
  state_->pauses = settings.pauses;
  state_->puts.reserve(4096);  // a rank that made it grow would race with whoever did so before
  state_->members.resize(static_cast<size_t>(settings.ranks));
  for (Member& m : state_->members) {
    m.window = make_memory(settings.window_bytes);
    m.heap = make_memory(settings.heap_bytes);
    m.nowhere = make_memory(settings.direct ? settings.window_bytes : 0);
  }
}

Universe::~Universe() {
  State& s = *state_;
  s.tearing_down = true;
  for (Member& m : s.members) {
    while (m.fiber && m.fiber->has_started() && !m.fiber->has_ended()) m.fiber->resume();
  }
  join();
  for (const Put& put : s.puts) delete[] put.bytes;
}

void Universe::start(const std::function<void(int)>& body) {
  for (int rank = 0; rank < state_->settings.ranks; ++rank) {
    state_->members[static_cast<size_t>(rank)].fiber = std::make_unique<Fiber>([body, rank] {
      try {
        body(rank);
      } catch (const Gone&) {
      }
    });
  }
}

const std::vector<Action>& Universe::actions() {
  State& s = *state_;
  s.list_actions();
  while (s.actions.empty() && s.trouble.empty() && !s.all_over()) {
    if (s.settings.timeless) s.trouble = "nothing can happen, but not all ranks have ended";
    else if (++s.idle > kIdleLimit) s.trouble = "ranks wait for ever";
    s.pass_time();
    s.list_actions();
  }
  if (s.steps > kStepLimit) s.trouble = "ranks go round for ever";
  if (!s.trouble.empty()) s.actions.clear();
  return s.actions;
}

void Universe::perform(size_t action) {
  State& s = *state_;
  ++s.steps;
  const Action chosen = s.actions[action];
  if (chosen.what != Action::What::run) {
    s.idle = 0;
    return s.land(s.subject[action], chosen.what == Action::What::bytes);
  }
  Member& m = s.members[static_cast<size_t>(chosen.rank)];
  m.awake = false;
  m.fiber->resume();
}

void Universe::run(const std::function<void(int)>& body, Choices& choices) {
  start(body);
  while (!actions().empty()) perform(choices.choose(state_->actions));
  join();
}

void Universe::join() {
  for (Member& m : state_->members) {
    if (m.fiber) m.fiber->join();
  }
}

const std::string& Universe::trouble() const { return state_->trouble; }

uint64_t Universe::hash() const {
  const State& s = *state_;
  uint64_t on_its_way = 0;  // in no order
  for (const Put& put : s.puts) {
    uint64_t h = mix(static_cast<uint64_t>(put.to.peer * 2 + put.to.segment), static_cast<uint64_t>(put.to.offset));
    h = mix(mix(h, static_cast<uint64_t>(put.counter)), static_cast<uint64_t>(put.n));
    on_its_way += put.bytes_landed ? mix(h, 7) : hash_bytes(h, put.bytes, put.size);
  }
  uint64_t h = mix(on_its_way, s.now);
  for (const Member& m : s.members) {
    h = hash_bytes(h, m.window.get(), s.settings.window_bytes);
    h = hash_bytes(h, m.heap.get(), s.settings.heap_bytes);
    h = mix(h, m.fiber->has_ended() ? 2 : m.fiber->has_started() ? 1 : 0);
    if (m.watch) h = mix(h, m.watch());
  }
  return h;
}

void Universe::watch(int rank, std::function<uint64_t()> local_state) {
  state_->members[static_cast<size_t>(rank)].watch = std::move(local_state);
}

std::byte* Universe::window(int rank) const { return state_->members[static_cast<size_t>(rank)].window.get(); }
std::byte* Universe::heap(int rank) const { return state_->members[static_cast<size_t>(rank)].heap.get(); }
bool Universe::is_direct() const { return state_->settings.direct; }

std::byte* Universe::stage(int rank, const Place& place, int64_t bytes) {
  const State& s = *state_;
  if (s.settings.direct && s.tearing_down) return s.members[static_cast<size_t>(rank)].nowhere.get();
  if (s.settings.direct) return s.memory_of(place);
  auto* memory = new std::byte[static_cast<size_t>(bytes)];
  std::memset(memory, 0xCD, static_cast<size_t>(bytes));  // what the sender leaves unwritten shows
  return memory;
}

void Universe::put(int rank, const Place& place, const std::byte* staged, int64_t bytes, int64_t counter) {
  State& s = *state_;
  if (s.settings.direct) return;
  if (s.tearing_down) {
    delete[] staged;
    return;
  }
  s.puts.push_back({.from = rank, .to = place, .bytes = const_cast<std::byte*>(staged), .size = bytes, .counter = counter});
  ++s.members[static_cast<size_t>(rank)].pending;
  s.count_put(rank);
}

void Universe::add(int rank, int peer, int64_t counter, int64_t n) {
  State& s = *state_;
  if (s.tearing_down) return;
  Member& receiver = s.members[static_cast<size_t>(peer)];
  if (s.settings.direct) {
    add_count(reinterpret_cast<uint64_t*>(receiver.window.get() + counter), static_cast<uint64_t>(n));
    receiver.awake = true;
    s.idle = 0;
    s.count_put(rank);
    return s.pause(rank);
  }
  s.puts.push_back({.from = rank, .to = {.peer = peer}, .counter = counter, .n = n});
  ++s.members[static_cast<size_t>(rank)].pending;
  s.count_put(rank);
}

void Universe::drain(int rank) {
  Member& m = state_->members[static_cast<size_t>(rank)];
  while (m.pending > 0 && !state_->tearing_down) m.fiber->yield();
}

uint64_t Universe::now(int rank) {
  state_->pause(rank);
  return state_->now;
}

void Universe::relax(int rank) {
  if (state_->tearing_down) throw Gone{};
  state_->members[static_cast<size_t>(rank)].fiber->yield();
  if (state_->tearing_down) throw Gone{};
}

void Universe::sleep(int rank, uint64_t ns) {
  Member& m = state_->members[static_cast<size_t>(rank)];
  m.wakes_at = state_->now + ns;
  m.awake = true;
  while (state_->now < m.wakes_at) relax(rank);
}

void Universe::doom(int rank, int puts) { state_->members[static_cast<size_t>(rank)].puts_left = puts; }
void Universe::die(int rank) { state_->stop(state_->members[static_cast<size_t>(rank)]); }
bool Universe::is_dead(int rank) const { return state_->members[static_cast<size_t>(rank)].dead; }

}  // namespace heddle::testing
