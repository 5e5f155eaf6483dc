// heddle_cuda_bench OUT.json [TOKENS [RANKS]]: the link's floor and six operations on all GPUs (RANKS of them on one GPU share
// it); a table in OUT.txt, all numbers in OUT.json. Ranks are threads. docs/performance.md says how to read it.
//   HEDDLE_SMS      SMs to use, by commas; default 24 and all
//   HEDDLE_SENDERS  whole calls also with these numbers of sending warps a block
//   HEDDLE_ONLY     operations whose name has this in it
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/error.hpp"
#include "cuda_listed.hpp"
#include "cuda/gpu_machine.hpp"
#include "support/step_world.hpp"
#include "cuda_curves.hpp"
#include "cuda_decode.hpp"
#include "cuda_floor.hpp"
#include "cuda_host.hpp"
#include "cuda_operations.hpp"
#include "cuda_ranks.hpp"

namespace heddle::bench {
namespace {

constexpr int kTurns = 40;
constexpr size_t kWindowBytes = size_t{1} << 30;
constexpr size_t kHeapBytes = size_t{1} << 30;

struct Line {
  std::string name;
  int sms = 0;
  double bytes = 0;  // that the busiest rank sends
  Spread time;
  std::string note;
};

class Report {
 public:
  void add(const Line& line) { lines_.push_back(line); }
  double best_rate() const {
    double best = 0;
    for (const Line& line : lines_) {
      if (line.name == "copy by kernel") best = std::max(best, line.bytes / line.time.median);
    }
    return best;
  }

  void write(const std::string& json_path, const Batches& batches, int gpus) const {
    std::ofstream json(json_path), text(json_path.substr(0, json_path.rfind('.')) + ".txt");
    json << fmt::format("{{\"ranks\": {}, \"gpus\": {}, \"tokens\": {}, \"hidden\": {}, \"topk\": {}, \"experts\": {},\n",
                        batches.ranks, gpus, batches.tokens, batches.hidden, batches.topk, batches.experts);
    json << fmt::format(" \"floor_gb_s\": {:.1f}, \"lines\": [", best_rate() * 1e-3);
    text << fmt::format("{:44}{:>5}{:>10}{:>10}{:>10}{:>9}{:>8}\n", "", "SMs", "median", "p99", "floor", "ratio", "GB/s");
    const char* comma = "";
    for (const Line& line : lines_) {
      const double floor = best_rate() > 0 ? line.bytes / best_rate() : 0;
      json << comma
           << fmt::format("\n  {{\"name\": \"{}\", \"sms\": {}, \"bytes\": {:.0f}, \"median_us\": {:.2f}, \"p99_us\": {:.2f}, "
                          "\"least_us\": {:.2f}, \"floor_us\": {:.2f}}}",
                          line.name, line.sms, line.bytes, line.time.median, line.time.p99, line.time.least, floor);
      text << fmt::format("{:44}{:5}{:10.1f}{:10.1f}{:10.1f}{:9.2f}{:8.0f}  {}\n", line.name, line.sms, line.time.median,
                          line.time.p99, floor, floor > 0 ? line.time.median / floor : 0.0,
                          line.bytes / line.time.median * 1e-3, line.note);
      comma = ",";
    }
    json << "]}\n";
  }

 private:
  std::vector<Line> lines_;
};

/// One rank of the benchmark: its share of every measurement, all ranks at the same time.
class RankBench {
 public:
  RankBench(Bootstrap& bootstrap, Ranks& ranks, Report& report, const Batches& batches)
      : bootstrap_(bootstrap), ranks_(ranks), report_(report), batches_(batches), rank_(bootstrap.rank()),
        options_{.window_bytes = kWindowBytes, .tags = true}, machine_(bootstrap, options_, {}) {
    check(cudaSetDevice(machine_.device()), "choosing a GPU");
    timer_.emplace();
  }

  void run() {
    measure_floor();
    for (const DType dtype : {DType::e4m3, DType::bf16}) {
      const spec::World world = make_rows(batches_, dtype);
      for (const Operation& operation : operations(batches_.tokens)) {
        if (operation.dispatch.dtype != dtype || operation.name.find(only_) == std::string::npos) continue;
        measure(world, operation, false);
        if (!operation.is_combine) measure(world, operation, true);
      }
    }
    ranks_.meet();
  }

 private:
  cudaStream_t stream() { return machine_.backend().launch().stream; }

  template <class Work>
  void time(const std::string& name, int sms, double bytes, const Work& work, const std::function<std::string()>& note = {}) {
    const Spread spread = ranks_.time(rank_, *timer_, stream(), kTurns, work);
    if (rank_ == 0) {
      report_.add({.name = name, .sms = sms, .bytes = bytes, .time = spread, .note = note ? note() : ""});
    }
    ranks_.meet();
  }

  /// Where the time of the last whole call went, in us from its start, as the last block saw it.
  std::string moments(CudaBackend& backend) const {
    const PumpState state = backend.look_at_pump();
    const auto at = [&](Moment moment) {
      const uint64_t passed = state.moments[static_cast<int>(moment)] - state.moments[static_cast<int>(Moment::start)];
      return static_cast<double>(passed) / cycles_per_us(machine_.device());
    };
    return fmt::format("opened {:.1f}, laid out {:.1f}, sent {:.1f}, received {:.1f}, met {:.1f}, closed {:.1f}",
                       at(Moment::opened), at(Moment::laid_out), at(Moment::sent), at(Moment::received), at(Moment::met),
                       at(Moment::closed));
  }

  /// Everyone writes to its right neighbour's window, both directions of the link at once.
  void measure_floor() {
    const auto bytes = static_cast<size_t>(batches_.tokens) * static_cast<size_t>(batches_.hidden) * 2;
    const auto from = machine_.backend().allocate(bytes);
    std::byte* to = machine_.windows().peer((rank_ + 1) % ranks_.count()) + (size_t{64} << 20);
    const int share = testing::sms_for(ranks_.count());
    for (const int blocks : {4, 8, 12, 16, 24, 32, 48, 64, 96, 132}) {
      if (blocks > share) break;
      time("copy by kernel", blocks, static_cast<double>(bytes),
           [&] { copy_by_kernel(to, from.get(), bytes, blocks, stream()); });
    }
    time("copy engine", 0, static_cast<double>(bytes), [&] {
      check(cudaMemcpyAsync(to, from.get(), bytes, cudaMemcpyDeviceToDevice, stream()), "copying");
    });
    // What was copied is no protocol data, but the control region was left alone.
  }

  void measure(const spec::World& world, const Operation& operation, bool in_place) {
    const Topology topo{.rank = rank_, .world = world.ranks, .experts = world.experts};
    const std::string name = operation.name + (in_place ? ", in place" : "");
    testing::GpuMachine machine(bootstrap_, options_, {.heap_bytes = in_place ? kHeapBytes : 0});
    CudaBackend& backend = machine.backend();
    testing::StepRank rank(machine, world, topo, options_);
    rank.plan();
    ranks_.meet();
    if (!rank.send_dispatch(operation.dispatch) || !rank.read_headers() || !rank.receive_dispatch()) {
      fail(ErrorCode::faulted, "{}: the first call ended in a fault", operation.name);
    }
    const DispatchArgs& dispatch = rank.dispatch_args();
    DispatchArgs planning = dispatch;
    planning.makes_plan = true;
    const CombineArgs combine = rank.echo_args();
    const int share = testing::sms_for(ranks_.count());
    std::vector<int> sizes = listed("HEDDLE_SMS");
    if (sizes.empty()) sizes = {24, share};
    for (const int sms : sizes) {
      if (sms > share) continue;
      Launch launch = backend.launch();
      launch.wait = false;
      launch.num_sms = sms;
      launch.stream = stream();
      backend.use(launch);
      const double bytes = wire_bytes(world, rank_, operation);
      const auto run = [&](bool whole) {
        if (operation.is_combine) return whole ? (void)backend.combine(combine) : run_combine(backend, combine);
        if (whole) return (void)backend.dispatch(planning);
        backend.plan(topo, dispatch.plan);
        run_dispatch(backend, dispatch);
      };
      time(name, sms, bytes, [&] { run(true); }, [&] { return moments(backend); });
      for (const int senders : senders_) {
        backend.tune(senders);
        time(fmt::format("{}, {} senders", name, senders), sms, bytes, [&] { run(true); },
             [&] { return moments(backend); });
      }
      backend.tune(0);
      if (!operation.is_combine) {
        time(name + ", plan apart", sms, bytes, [&] {
          backend.plan(topo, dispatch.plan);
          backend.dispatch(dispatch);
        });
      }
      time(name + ", steps", sms, bytes, [&] { run(false); });
      if (!operation.is_combine && !in_place) time("its plan", sms, 0, [&] { backend.plan(topo, dispatch.plan); });
      backend.drain();
    }
    if (rank.ledger().fault_claimed != 0) fail(ErrorCode::faulted, "{}: ended in a fault", operation.name);
    ranks_.meet();
  }

  static void run_dispatch(CudaBackend& backend, const DispatchArgs& args) {
    backend.dispatch_send(args);
    backend.dispatch_headers(args);
    backend.dispatch_receive(args);
  }

  static void run_combine(CudaBackend& backend, const CombineArgs& args) {
    backend.combine_send(args);
    backend.combine_headers(args);
    backend.combine_receive(args);
  }

  Bootstrap& bootstrap_;
  Ranks& ranks_;
  Report& report_;
  const Batches batches_;
  const int rank_;
  const std::vector<int> senders_ = listed("HEDDLE_SENDERS");
  const std::string only_ = std::getenv("HEDDLE_ONLY") == nullptr ? "" : std::getenv("HEDDLE_ONLY");
  testing::MachineOptions options_;
  testing::GpuMachine machine_;
  std::optional<Timer> timer_;
};

int run(int argc, char** argv) {
  HEDDLE_CHECK(argc >= 2, "usage: heddle_cuda_bench OUT.json [TOKENS [RANKS]]");
  if (const std::string problem = cuda_problem(); !problem.empty()) fail(ErrorCode::system, "{}", problem);
  Batches batches;
  batches.ranks = std::max(2, testing::count_gpus());
  if (argc > 2) batches.tokens = std::atoi(argv[2]);
  if (argc > 3) batches.ranks = std::atoi(argv[3]);
  Report report;
  Ranks ranks(batches.ranks);
  const testing::Errors errors = testing::run_threads(batches.ranks, [&](Bootstrap& bootstrap) {
    RankBench(bootstrap, ranks, report, batches).run();
  });
  for (const auto& error : errors) {
    if (error) throw *error;
  }
  report.write(argv[1], batches, testing::count_gpus());
  return 0;
}

}  // namespace
}  // namespace heddle::bench

int main(int argc, char** argv) {
  try {
    if (argc > 1 && std::string(argv[1]) == "curves") return heddle::bench::run_curves(argc - 1, argv + 1);
    if (argc > 1 && std::string(argv[1]) == "decode") return heddle::bench::run_decode(argc - 1, argv + 1);
    if (argc > 1 && std::string(argv[1]) == "host") return heddle::bench::run_host(argc - 1, argv + 1);
    return heddle::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "heddle_cuda_bench: {}\n", error.what());
    return 1;
  }
}
