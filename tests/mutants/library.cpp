// What run.py compiles against damaged headers.
#define make_sim_backend make_damaged_backend
#define add_count add_damaged_count
#include "sim/sim_backend.cpp"

extern "C" void heddle_make_sim_backend(heddle::testing::Universe& universe, int rank, bool watched,
                                        std::unique_ptr<heddle::Backend>& backend) {
  backend = heddle::testing::make_damaged_backend(universe, rank, watched);
}
extern "C" void heddle_add_count(uint64_t* word, uint64_t n) { heddle::testing::add_damaged_count(word, n); }
