#include "mutants/steps.hpp"

#include <dlfcn.h>

// The simulation as it is everywhere else, under other names.
namespace heddle::testing {

std::unique_ptr<Backend> make_own_backend(Universe&, int rank, bool watched);
void add_own_count(uint64_t* word, uint64_t n);

namespace {

auto* make_backend = &make_own_backend;
auto* add_to_count = &add_own_count;

}  // namespace

bool use_steps(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  using Make = void(Universe&, int, bool, std::unique_ptr<Backend>&);
  static Make* const make = reinterpret_cast<Make*>(dlsym(library, "heddle_make_sim_backend"));
  static auto* const add = reinterpret_cast<void (*)(uint64_t*, uint64_t)>(dlsym(library, "heddle_add_count"));
  if (make == nullptr || add == nullptr) return false;
  make_backend = [](Universe& universe, int rank, bool watched) {
    std::unique_ptr<Backend> backend;
    make(universe, rank, watched, backend);
    return backend;
  };
  add_to_count = add;
  return true;
}

std::unique_ptr<Backend> make_sim_backend(Universe& universe, int rank, bool watched) {
  return make_backend(universe, rank, watched);
}
void add_count(uint64_t* word, uint64_t n) { add_to_count(word, n); }

}  // namespace heddle::testing
