// The steps of the sources as they are.
#define make_sim_backend make_own_backend
#define add_count add_own_count
#include "sim/sim_backend.cpp"
