#include "cuda_curves.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>

#include "base/error.hpp"
#include "cuda/gpu_machine.hpp"
#include "cuda_floor.hpp"
#include "cuda_ranks.hpp"
#include "cuda_setups.hpp"
#include "ops/call_cost.hpp"
#include "support/step_world.hpp"

namespace heddle::bench {
namespace {

constexpr int kTurns = 20;
constexpr size_t kWindowBytes = size_t{1} << 30;
constexpr size_t kPinnedBytes = size_t{256} << 20;

/// One measurement, and what it is held against.
struct Point {
  const Setup* setup = nullptr;
  int sms = 0;
  std::string variant;  // the kernels that ran
  double bytes = 0;     // that the busiest rank sends
  Spread time;
  double floor = 0;  // us that copy kernels take for as many bytes, in this run
  double model = 0;  // us that the cost model predicts; 0: it has nothing to say
  double ratio = 0;  // to the plain one; 0: there is none
};

int number_in(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

/// One rank's part of one setup, ready to be run again and again.
class CallBench {
 public:
  CallBench(Bootstrap& bootstrap, const Setup& setup, const spec::World& world)
      : setup_(setup), own_(bootstrap.rank()), world_(world),
        options_{
            .window_bytes = setup.path == CudaPath::pinned ? kPinnedBytes : kWindowBytes, .tags = true, .fills = false},
        machine_(bootstrap, options_, {.path = setup.path, .heap_bytes = setup.in_place ? heap_bytes() : 0}),
        topo_{.rank = own_, .world = world_.ranks, .experts = world_.experts},
        rank_(machine_, world_, topo_, options_) {
    check(cudaSetDevice(machine_.device()), "choosing a GPU");
    rank_.plan();
    bootstrap.barrier("all have planned");
    if (!rank_.send_dispatch(setup.operation.dispatch) || !rank_.read_headers() || !rank_.receive_dispatch()) {
      fail(ErrorCode::faulted, "{}: the first call ended in a fault", setup.name);
    }
    dispatch_ = rank_.dispatch_args();
    dispatch_.makes_plan = true;
    outputs_.push_back(dispatch_.out.x);
    const auto bytes = static_cast<size_t>(rank_.rows() * dispatch_.call.shape.payload_bytes);
    while (static_cast<int>(outputs_.size()) < setup.outputs) {
      held_.push_back(machine_.backend().allocate(bytes));
      outputs_.push_back(static_cast<std::byte*>(held_.back().get()));
    }
    if (setup.operation.is_combine) combine_ = rank_.echo_args(setup.combine);
  }

  cudaStream_t use(int sms) {
    Launch launch = backend().launch();
    launch.wait = false;
    launch.num_sms = sms;
    backend().use(launch);
    return launch.stream;
  }

  void run() {
    if (setup_.plan_only) return backend().plan(topo_, dispatch_.plan);
    if (setup_.operation.is_combine) return (void)backend().combine(combine_);
    dispatch_.out.x = outputs_[next_++ % outputs_.size()];
    backend().dispatch(dispatch_);
  }

  Point point(int sms, const Spread& time) {
    Point point{.setup = &setup_, .sms = sms, .time = time};
    if (setup_.plan_only) return point;
    const bool is_combine = setup_.operation.is_combine;
    const Shape& shape = is_combine ? combine_.call.shape : dispatch_.call.shape;
    const auto row = static_cast<double>(shape.payload_bytes) + 4.0 * shape.scale_words;
    point.variant = is_combine ? backend().variant_of(combine_) : backend().variant_of(dispatch_);
    // wire_bytes() counts rows as the batch has them; a cast changes what travels.
    point.bytes = wire_bytes(world_, own_, setup_.operation) / (world_.row_bytes + 4.0 * world_.scale_words) * row;
    if (setup_.path != CudaPath::pinned)
      point.model = CallCost::of(topo_, shape, setup_.batches.tokens).microseconds(sms);
    return point;
  }

  void end() {
    backend().drain();
    if (rank_.ledger().fault_claimed != 0) fail(ErrorCode::faulted, "{}: ended in a fault", setup_.name);
  }

  CudaBackend& backend() { return machine_.backend(); }
  testing::GpuMachine& machine() { return machine_; }

 private:
  size_t heap_bytes() const {
    const Batches& batches = setup_.batches;
    const bool token_major = setup_.operation.dispatch.layout == Layout::token_major;
    const auto rows = static_cast<size_t>(batches.ranks) * static_cast<size_t>(batches.tokens) *
                      (token_major ? 1u : static_cast<size_t>(batches.topk));
    return rows * static_cast<size_t>(world_.row_bytes);
  }

  const Setup& setup_;
  const int own_;
  const spec::World& world_;
  const testing::MachineOptions options_;
  testing::GpuMachine machine_;
  const Topology topo_;
  testing::StepRank rank_;
  DispatchArgs dispatch_;
  CombineArgs combine_;
  std::vector<std::shared_ptr<void>> held_;
  std::vector<std::byte*> outputs_;
  size_t next_ = 0;
};

/// All ranks, setup by setup.
class Curves {
 public:
  explicit Curves(int count) : ranks_(count), share_(testing::sms_for(count)) {}

  void measure(const Setup& setup) {
    use_rows(setup);
    const testing::Errors errors = testing::run_threads(ranks_.count(), [&](Bootstrap& bootstrap) {
      CallBench bench(bootstrap, setup, world_);
      const std::unique_ptr<Timer> timer = std::make_unique<Timer>();
      if (!rates_.contains(setup.path)) measure_floor(bench, setup.path, *timer, bootstrap);
      for (const int wanted : setup.sms.empty() ? std::vector<int>{0} : setup.sms) {
        const int sms = wanted == 0 ? share_ : wanted;
        if (wanted > share_) continue;
        const cudaStream_t stream = bench.use(sms);
        const Spread time = ranks_.time(bootstrap.rank(), *timer, stream, kTurns, [&] { bench.run(); });
        if (bootstrap.rank() == 0) add(bench.point(sms, time));
        ranks_.meet();
      }
      bench.end();
      ranks_.meet();
    });
    for (const auto& error : errors) {
      if (error) throw *error;
    }
  }

  const std::vector<Point>& points() const { return points_; }
  double rate(CudaPath path) const { return rates_.contains(path) ? rates_.at(path) : 0; }

 private:
  /// Making rows takes longer than timing a call, so that setups share them where they can.
  void use_rows(const Setup& setup) {
    const DType dtype = setup.operation.dispatch.dtype;
    if (setup.batches == batches_ && dtype == dtype_) return;
    world_ = {};
    world_ = make_rows(setup.batches, dtype);
    batches_ = setup.batches;
    dtype_ = dtype;
  }

  /// Everyone writes to its right neighbour's window at once.
  void measure_floor(CallBench& bench, CudaPath path, Timer& timer, Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    constexpr size_t kBytes = size_t{58} << 20;
    const auto from = bench.backend().allocate(kBytes);
    std::byte* to = bench.machine().windows().peer((rank + 1) % ranks_.count()) + (size_t{64} << 20);
    const cudaStream_t stream = bench.use(share_);
    double best = 0;
    for (const int blocks : {8, 16, 24, 32, 64, 132}) {
      if (blocks > share_) break;
      const Spread time =
          ranks_.time(rank, timer, stream, kTurns, [&] { copy_by_kernel(to, from.get(), kBytes, blocks, stream); });
      best = std::max(best, static_cast<double>(kBytes) / time.median);
      ranks_.meet();
    }
    if (rank == 0) rates_[path] = best;
    ranks_.meet();
  }

  void add(Point point) {
    const Setup& setup = *point.setup;
    if (const double rate = rates_.at(setup.path); rate > 0) point.floor = point.bytes / rate;
    if (setup.name == setup.plain) plain_[setup.plain] = point.time.median;
    else if (!setup.plain.empty()) point.ratio = point.time.median / plain_.at(setup.plain);
    points_.push_back(std::move(point));
  }

  Ranks ranks_;
  const int share_;
  spec::World world_;  // the rows of batches_ in dtype_
  Batches batches_{.ranks = 0};
  DType dtype_ = DType::bf16;
  std::map<CudaPath, double> rates_;  // bytes a us
  std::map<std::string, double> plain_;
  std::vector<Point> points_;
};

/// Ranks that share a GPU copy within it: their numbers say nothing about a link.
std::string link_of(int ranks, int gpus) {
  return gpus >= ranks ? fmt::format("{} GPUs, one a rank", ranks)
                       : fmt::format("{} ranks share {} GPU{}: NO NVLINK NUMBERS", ranks, gpus, gpus == 1 ? "" : "s");
}

void write(const std::string& path, const Curves& curves, int ranks) {
  std::ofstream json(path), text(path.substr(0, path.rfind('.')) + ".txt");
  const std::string link = link_of(ranks, testing::count_gpus());
  json << fmt::format(
      "{{\"ranks\": {}, \"link\": \"{}\", \"copy_gb_s\": {:.1f}, \"copy_pinned_gb_s\": {:.1f}, \"points\": [", ranks,
      link, curves.rate(CudaPath::automatic) * 1e-3, curves.rate(CudaPath::pinned) * 1e-3);
  text << fmt::format("{}; us, median of {}; copies {:.0f} GB/s, to pinned memory {:.0f}\n", link, kTurns,
                      curves.rate(CudaPath::automatic) * 1e-3, curves.rate(CudaPath::pinned) * 1e-3);
  text << fmt::format("{:9}{:48}{:>7}{:>5}{:>8}{:>10}{:>10}{:>9}{:>9}{:>7}\n", "", "", "tokens", "SMs", "kernels",
                      "median", "p99", "floor", "model", "ratio");
  const char* comma = "";
  for (const Point& point : curves.points()) {
    const Setup& setup = *point.setup;
    json << comma
         << fmt::format(
                "\n  {{\"section\": \"{}\", \"name\": \"{}\", \"tokens\": {}, \"sms\": {}, \"kernels\": \"{}\", "
                "\"bytes\": {:.0f}, "
                "\"median_us\": {:.2f}, \"p99_us\": {:.2f}, \"least_us\": {:.2f}, \"floor_us\": {:.2f}, "
                "\"model_us\": {:.1f}, \"ratio_to_plain\": {:.3f}}}",
                setup.section, setup.name, setup.batches.tokens, point.sms, point.variant, point.bytes,
                point.time.median, point.time.p99, point.time.least, point.floor, point.model, point.ratio);
    const auto number = [](double value, int digits) {
      return value > 0 ? fmt::format("{:.{}f}", value, digits) : std::string("-");
    };
    text << fmt::format("{:9}{:48}{:7}{:5}{:>8}{:10.1f}{:10.1f}{:>9}{:>9}{:>7}\n", setup.section, setup.name,
                        setup.batches.tokens, point.sms, point.variant, point.time.median, point.time.p99,
                        number(point.floor, 1), number(point.model, 0), number(point.ratio, 2));
    comma = ",";
  }
  json << "]}\n";
}

}  // namespace

int run_curves(int argc, char** argv) {
  HEDDLE_CHECK(argc >= 2, "usage: heddle_cuda_bench curves OUT.json [SECTION]...");
  if (const std::string problem = cuda_problem(); !problem.empty()) fail(ErrorCode::system, "{}", problem);
  std::vector<std::string> names(argv + 2, argv + argc);
  if (names.empty()) names = sections();
  Batches batches;
  batches.ranks = number_in("HEDDLE_RANKS", std::max(2, testing::count_gpus()));
  batches.tokens = number_in("HEDDLE_TOKENS", batches.tokens);
  std::vector<Setup> setups;
  for (const std::string& name : names) {
    for (Setup& setup : setups_of(name, batches, number_in("HEDDLE_MOST_TOKENS", 65536)))
      setups.push_back(std::move(setup));
  }
  Curves curves(batches.ranks);
  for (const Setup& setup : setups) {
    curves.measure(setup);
    write(argv[1], curves, batches.ranks);  // what there is, should the time run out
  }
  return 0;
}

}  // namespace heddle::bench
