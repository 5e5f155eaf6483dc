// Compiled without ThreadSanitizer (Sim.cmake): these few words belong to all fibers.
#include "sim/fiber.hpp"

#include <cxxabi.h>
#include <ucontext.h>

#include <utility>
#include <vector>

#include "sim/sanitizers.hpp"

namespace heddle::testing {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;

/// An exception in flight belongs to a stack, but the runtime keeps it by thread: a rank may wait in a catch block. The
/// layout is that of the C++ ABI.
struct Exceptions {
  void* caught = nullptr;
  unsigned int uncaught = 0;
};

void swap_exceptions(Exceptions& leaving, const Exceptions& coming) {
  auto* globals = reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
  leaving = *globals;
  *globals = coming;
}

/// Stacks are used again: an exploration makes a few hundred thousand of them.
std::vector<std::unique_ptr<char[]>>& spare_stacks() {
  thread_local std::vector<std::unique_ptr<char[]>> spare;
  return spare;
}

thread_local Fiber* running = nullptr;

std::unique_ptr<char[]> take_stack() {
  auto& spare = spare_stacks();
  if (spare.empty()) return std::unique_ptr<char[]>(new char[kStackBytes]);
  auto stack = std::move(spare.back());
  spare.pop_back();
  return stack;
}

}  // namespace

struct Fiber::Stack {
  std::function<void()> body;
  std::unique_ptr<char[]> memory = take_stack();
  ucontext_t own{};
  ucontext_t main{};
  Exceptions own_exceptions;
  Exceptions main_exceptions;
  AddressView own_view;   // of AddressSanitizer
  AddressView main_view;
  void* own_thread = make_tsan_fiber();
  void* main_thread = nullptr;
  bool started = false;
  bool ended = false;

  static inline thread_local Stack* coming = nullptr;  // whose first resume() this is

  static void enter() {
    Stack* self = coming;
    finish_switch(self->own_view, &self->main_view);
    self->body();
    self->ended = true;
    self->leave(/*for_ever=*/true);
  }

  void leave(bool for_ever) {
    swap_exceptions(own_exceptions, main_exceptions);
    start_switch(for_ever ? nullptr : &own_view, main_view);
    switch_tsan_fiber(main_thread, /*orders=*/false);
    swapcontext(&own, &main);
    finish_switch(own_view, &main_view);
  }

  void prepare() {
    started = true;
    getcontext(&own);
    own.uc_stack.ss_sp = memory.get();
    own.uc_stack.ss_size = kStackBytes;
    own.uc_link = nullptr;
    coming = this;
    makecontext(&own, &Stack::enter, 0);
    own_view = {.bottom = memory.get(), .size = kStackBytes};
    own_exceptions = {};
  }
};

Fiber::Fiber(std::function<void()> body) : stack_(std::make_unique<Stack>()) { stack_->body = std::move(body); }

Fiber::~Fiber() {
  destroy_tsan_fiber(stack_->own_thread);
  spare_stacks().push_back(std::move(stack_->memory));
}

void Fiber::restart(std::function<void()> body) {
  stack_->body = std::move(body);
  stack_->started = stack_->ended = false;
}

void Fiber::resume() {
  Stack& s = *stack_;
  const bool first = !s.started;
  if (first) s.prepare();
  s.main_thread = current_tsan_fiber();
  swap_exceptions(s.main_exceptions, s.own_exceptions);
  start_switch(&s.main_view, s.own_view);
  switch_tsan_fiber(s.own_thread, /*orders=*/first);  // it may read what was prepared for it
  running = this;
  swapcontext(&s.main, &s.own);
  running = nullptr;
  finish_switch(s.main_view, nullptr);
}

void Fiber::yield() { stack_->leave(/*for_ever=*/false); }
Fiber* Fiber::current() { return running; }
bool Fiber::has_started() const { return stack_->started; }
bool Fiber::has_ended() const { return stack_->ended; }

void Fiber::begin_acting_for() {
  stack_->main_thread = current_tsan_fiber();
  switch_tsan_fiber(stack_->own_thread, /*orders=*/false);
}

void Fiber::end_acting_for() { switch_tsan_fiber(stack_->main_thread, /*orders=*/false); }

void Fiber::join() {
  begin_acting_for();
  switch_tsan_fiber(stack_->main_thread, /*orders=*/true);
}

}  // namespace heddle::testing
