#include "cuda_decode.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "cuda_listed.hpp"
#include "cuda/gpu_machine.hpp"
#include "cuda_operations.hpp"
#include "cuda_ranks.hpp"
#include "support/step_world.hpp"

namespace heddle::bench {
namespace {

constexpr int kPairs = 20;     // of one graph
constexpr int kTurns = 200;
constexpr int kPlainTurns = 20;
constexpr int kLeastRoom = 128;  // tokens of a rank that the outputs have room for
constexpr size_t kWindowBytes = size_t{1} << 30;

/// What is captured once and launched many times.
class Graph {
 public:
  template <class Work>
  Graph(cudaStream_t stream, const Work& work) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
    work();
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "ending a capture");
    check(cudaGraphInstantiate(&executable_, graph, 0), "making a graph");
    check(cudaGraphDestroy(graph), "dropping a graph");
    check(cudaGraphUpload(executable_, stream), "uploading a graph");
  }
  ~Graph() { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream), "launching a graph"); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

struct Line {
  std::string name;
  int tokens = 0;
  int sms = 0;
  Spread time;
};

void write(const std::string& json_path, const std::vector<Line>& lines, const Batches& batches) {
  std::ofstream json(json_path), text(json_path.substr(0, json_path.rfind('.')) + ".txt");
  json << fmt::format("{{\"ranks\": {}, \"gpus\": {}, \"hidden\": {}, \"topk\": {}, \"experts\": {}, \"lines\": [",
                      batches.ranks, testing::count_gpus(), batches.hidden, batches.topk, batches.experts);
  text << fmt::format("{:44}{:>8}{:>6}{:>10}{:>10}{:>10}\n", "us", "tokens", "SMs", "median", "p99", "least");
  const char* comma = "";
  for (const Line& line : lines) {
    json << comma
         << fmt::format("\n  {{\"name\": \"{}\", \"tokens\": {}, \"sms\": {}, \"median_us\": {:.2f}, \"p99_us\": {:.2f}, "
                        "\"least_us\": {:.2f}}}",
                        line.name, line.tokens, line.sms, line.time.median, line.time.p99, line.time.least);
    text << fmt::format("{:44}{:8}{:6}{:10.2f}{:10.2f}{:10.2f}\n", line.name, line.tokens, line.sms, line.time.median,
                        line.time.p99, line.time.least);
    comma = ",";
  }
  json << "]}\n";
}

/// One rank, one batch size: slab, cast to e4m3 in the dispatch; BF16 back, weighted at the owner.
class RankDecode {
 public:
  RankDecode(Bootstrap& bootstrap, Ranks& ranks, std::vector<Line>& lines, const Batches& batches, bool words)
      : ranks_(ranks), lines_(lines), batches_(batches), words_(words), own_(bootstrap.rank()),
        world_(make_rows(batches, DType::bf16)),
        options_{.window_bytes = kWindowBytes, .tags = true, .words = words}, machine_(bootstrap, options_, {}),
        topo_{.rank = own_, .world = batches.ranks, .experts = batches.experts},
        rank_(machine_, world_, topo_, options_) {
    check(cudaSetDevice(machine_.device()), "choosing a GPU");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    timer_.emplace();
  }

  void run() {
    rank_.plan();
    ranks_.meet();
    const testing::DispatchCase wanted{.layout = Layout::slab, .quantise = is_set("HEDDLE_RAW") ? Quantise::none : Quantise::fp8,
                                       .max_tokens = std::max(batches_.tokens, kLeastRoom),
                                       .tells_ready = is_set("HEDDLE_READY")};
    if (!rank_.whole_dispatch(wanted)) fail(ErrorCode::faulted, "the first dispatch ended in a fault");
    dispatch_ = rank_.dispatch_args();
    const size_t bytes = static_cast<size_t>(rank_.rows()) * static_cast<size_t>(batches_.hidden) * sizeof(bf16);
    const auto experts = machine_.backend().allocate(bytes);
    combine_ = rank_.echo_args();
    combine_.call.shape.weights = Weights::at_owner;
    combine_.experts.x = static_cast<const std::byte*>(experts.get());
    const int share = testing::sms_for(ranks_.count());
    std::vector<int> sizes = listed("HEDDLE_SMS");
    if (sizes.empty() && words_ && batches_.tokens == kLeastRoom) sizes = {16, 32, 64};
    sizes.push_back(share);
    for (const int sms : sizes) {
      if (sms <= share) measure(sms);
    }
    if (rank_.ledger().fault_claimed != 0) fail(ErrorCode::faulted, "a call ended in a fault");
    ranks_.meet();
  }

 private:
  CudaBackend& backend() { return machine_.backend(); }

  void measure(int sms) {
    Launch launch = backend().launch();
    launch.wait = false;
    launch.stream = stream_;  // the backend's own is never taken for a capture, and its calls tell the host of their end
    launch.num_sms = sms;
    backend().use(launch);
    const auto dispatch = [&] { backend().dispatch(dispatch_); };
    const auto combine = [&] { backend().combine(combine_); };
    const auto plan = [&] { backend().plan(topo_, dispatch_.plan); };
    const std::string way = words_ ? "" : ", whole calls";
    DispatchArgs from_ids = dispatch_;
    from_ids.makes_plan = true;
    time("pair" + way, sms, kPairs, [&] { dispatch(), combine(); });
    time("pair from ids" + way, sms, kPairs, [&] { backend().dispatch(from_ids), combine(); });
    time("pair with its plan" + way, sms, kPairs, [&] { plan(), dispatch(), combine(); });
    if (!words_) return;
    time("dispatch alone", sms, 1, dispatch);
    time("combine alone", sms, 1, combine);
    time("pair, each in two launches", sms, kPairs, [&] {
      backend().dispatch_send(dispatch_), backend().dispatch_receive(dispatch_);
      backend().combine_send(combine_), backend().combine_receive(combine_);
    });
  }

  template <class Work>
  void time(const std::string& name, int sms, int times, const Work& work) {
    if (name.find(only_) == std::string::npos) return;
    cudaStream_t stream = backend().launch().stream;
    ranks_.meet();
    std::optional<Graph> graph;
    graph.emplace(stream, [&] {
      for (int i = 0; i < times; ++i) work();
    });
    Spread spread = ranks_.time(own_, *timer_, stream, words_ ? kTurns : kPlainTurns, [&] { graph->launch(stream); });
    spread.median /= static_cast<float>(times);
    spread.p99 /= static_cast<float>(times);
    spread.least /= static_cast<float>(times);
    if (own_ == 0) lines_.push_back({.name = name, .tokens = batches_.tokens, .sms = sms, .time = spread});
    ranks_.meet();
  }

  Ranks& ranks_;
  const std::string only_ = std::getenv("HEDDLE_ONLY") == nullptr ? "" : std::getenv("HEDDLE_ONLY");
  std::vector<Line>& lines_;
  const Batches batches_;
  const bool words_;
  const int own_;
  const spec::World world_;
  const testing::MachineOptions options_;
  testing::GpuMachine machine_;
  const Topology topo_;
  testing::StepRank rank_;
  std::optional<Timer> timer_;
  cudaStream_t stream_ = nullptr;
  DispatchArgs dispatch_;
  CombineArgs combine_;
};

}  // namespace

int run_decode(int argc, char** argv) {
  HEDDLE_CHECK(argc >= 2, "usage: heddle_cuda_bench decode OUT.json [TOKENS]...");
  if (const std::string problem = cuda_problem(); !problem.empty()) fail(ErrorCode::system, "{}", problem);
  std::vector<int> sizes;
  for (int i = 2; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty()) sizes = {1, 2, 8, 32, 64, 128, 256, 512, 1024};
  std::vector<Line> lines;
  Batches batches;
  const std::vector<int> wanted = listed("HEDDLE_RANKS");
  batches.ranks = wanted.empty() ? std::max(2, testing::count_gpus()) : wanted.front();
  Ranks ranks(batches.ranks);
  for (const bool words : {true, false}) {
    for (const int tokens : sizes) {
      if (!words && tokens != 8 && tokens != 128) continue;
      batches.tokens = tokens;
      const testing::Errors errors = testing::run_threads(batches.ranks, [&](Bootstrap& bootstrap) {
        RankDecode(bootstrap, ranks, lines, batches, words).run();
      });
      for (const auto& error : errors) {
        if (error) throw *error;
      }
      write(argv[1], lines, batches);
    }
  }
  return 0;
}

}  // namespace heddle::bench
