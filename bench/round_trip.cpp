// How long a small batch takes to its experts and back: two ranks as processes, each on a core of its own. Prints JSON.
//   heddle_round_trip [tokens] [hidden] [iterations]
#include <heddle/heddle.hpp>

#include <fmt/core.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

namespace {

using namespace heddle;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 2;
constexpr int kTopk = 8;
constexpr int kExperts = 256;
constexpr int kWarmUp = 500;

struct Task {
  int tokens = 1;
  int hidden = 7168;
  int iterations = 5000;
};

/// Microseconds, as they came.
using Times = std::vector<double>;

double quantile(Times times, double share) {
  std::sort(times.begin(), times.end());
  return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
}

void stay_on_core(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  sched_setaffinity(0, sizeof(cores), &cores);
}

/// Every token has experts on both ranks.
std::vector<int32_t> spread_ids(const Task& task) {
  std::vector<int32_t> ids(static_cast<size_t>(task.tokens) * kTopk);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 33 % kExperts);
  return ids;
}

Times time_layout(Buffer& buffer, const Task& task, Layout layout) {
  std::vector<uint16_t> x(static_cast<size_t>(task.tokens) * static_cast<size_t>(task.hidden));
  std::vector<float> weights(static_cast<size_t>(task.tokens) * kTopk, 0.125f);
  std::vector<int32_t> ids = spread_ids(task);
  const Plan plan = buffer.plan(view_of(ids.data(), DType::i32, {task.tokens, kTopk}));
  DispatchInput input;
  input.x = view_of(x.data(), DType::bf16, {task.tokens, task.hidden});
  input.weights = view_of(weights.data(), DType::f32, {task.tokens, kTopk});
  DispatchOptions options;
  options.layout = layout;
  options.fixed_size = true;
  CombineOptions combine_options;
  combine_options.weighted = layout != Layout::token_major;
  Times times;
  for (int i = 0; i < kWarmUp + task.iterations; ++i) {
    const auto start = Clock::now();
    const Received received = buffer.dispatch(plan, input, options);
    CombineInput results;
    results.x = received.x.view;
    buffer.combine(received.handle, results, combine_options);
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    if (i >= kWarmUp) times.push_back(took.count());
  }
  return times;
}

void run_rank(int rank, const TcpListener& listener, const Task& task) {
  stay_on_core(rank);
  const std::shared_ptr<Bootstrap> ranks = tcp_store(
      {.rank = rank, .size = kRanks, .port = listener.port, .secret = "on this machine only", .listener = listener});
  Buffer buffer(ranks, {.experts = kExperts, .max_tokens = task.tokens});
  const Times token_major = time_layout(buffer, task, Layout::token_major);
  const Times slab = time_layout(buffer, task, Layout::slab);
  if (rank != 0) return;
  fmt::print(R"({{"ranks": {}, "tokens": {}, "hidden": {}, "topk": {}, "iterations": {},)"
             R"( "round_trip_us": {{"token_major": {{"median": {:.1f}, "p99": {:.1f}}},)"
             R"( "slab": {{"median": {:.1f}, "p99": {:.1f}}}}}}})" "\n",
             kRanks, task.tokens, task.hidden, kTopk, task.iterations, quantile(token_major, 0.5),
             quantile(token_major, 0.99), quantile(slab, 0.5), quantile(slab, 0.99));
}

}  // namespace

int main(int argc, char** argv) {
  Task task;
  if (argc > 1) task.tokens = std::atoi(argv[1]);
  if (argc > 2) task.hidden = std::atoi(argv[2]);
  if (argc > 3) task.iterations = std::atoi(argv[3]);
  const TcpListener listener = tcp_listen();
  const pid_t child = fork();
  run_rank(child == 0 ? 1 : 0, listener, task);
  if (child == 0) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
