#include "support/expert_gemm.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>
#include <vector>

#include "device/atomic.hpp"
#include "protocol/call.hpp"
#include "protocol/ready.hpp"
#include "support/errors.hpp"
#include "support/held_rows.hpp"
#include "support/step_world.hpp"

namespace heddle::testing {
namespace {

using std::chrono::steady_clock;

class CpuGemm : public ExpertGemm {
 public:
  explicit CpuGemm(const GemmArgs& args) : a_(args), done_(static_cast<size_t>(args.experts)) {}
  ~CpuGemm() override { join(); }
  void start() override {
    for (int expert = 0; expert < a_.experts; ++expert) threads_.emplace_back([this, expert] { run(expert); });
  }
  bool is_done(int expert) const override { return done_[static_cast<size_t>(expert)] != 0; }
  bool finish() override {
    join();
    return !gave_up_;
  }

 private:
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void run(int expert) {
    const auto deadline = steady_clock::now() + std::chrono::seconds(kGemmSeconds);
    while (load_acquire(a_.ready + expert) < a_.goal) {
      if (steady_clock::now() > deadline) {
        gave_up_ = true;
        return;
      }
      std::this_thread::yield();
    }
    for (int row = 0; row < a_.counts[expert]; ++row) {
      for (int n = 0; n < GemmArgs::kColumns; ++n) {
        a_.y[(int64_t{expert} * a_.group + row) * GemmArgs::kColumns + n] = a_.element(expert, row, n);
      }
    }
    done_[static_cast<size_t>(expert)] = 1;
  }

  GemmArgs a_;
  std::vector<std::atomic<int>> done_;
  std::atomic<bool> gave_up_ = false;
  std::vector<std::thread> threads_;
};

constexpr int kRanks = 3, kReader = 0, kWriter = 2, kGroup = 24;

/// Tokens of the writer go to the reader's second expert, all others to its first.
spec::World held_world() {
  spec::World world = make_world({.routing = Routing::uniform, .ranks = kRanks, .tokens = kGroup / kRanks, .topk = 2,
                                  .experts = 2 * kRanks, .hidden = 640});
  for (int rank = 0; rank < kRanks; ++rank) {
    spec::Batch& batch = world.batches[static_cast<size_t>(rank)];
    for (size_t i = 0; i < batch.ids.size(); ++i) batch.ids[i] = i % 2 == 1 ? -1 : rank == kWriter ? 1 : 0;
  }
  return world;
}

GemmArgs gemm_of(StepRank& rank, const spec::World& world) {
  const DispatchArgs& args = rank.dispatch_args();
  return {.x = reinterpret_cast<const e4m3*>(args.out.x),
          .scales = reinterpret_cast<const float*>(args.out.scales.words),
          .counts = args.out.counts,
          .ready = args.out.ready.words,
          .goal = kReadyCall,
          .y = rank.take<float>(2 * kGroup * GemmArgs::kColumns),
          .experts = 2,
          .group = kGroup,
          .hidden = world.hidden};
}

void expect_product(StepRank& rank, const spec::World& world, const GemmArgs& gemm) {
  const OutputView& out = rank.dispatch_args().out;
  for (int expert = 0; expert < 2; ++expert) {
    const int count = rank.at(out.counts + expert);
    EXPECT_EQ(count, expert == 0 ? 2 * kGroup / kRanks : kGroup / kRanks);
    for (int row = 0; row < count; ++row) {
      const int at = expert * kGroup + row;
      const spec::Batch& batch = world.batches[static_cast<size_t>(rank.at(out.row_source + at))];
      const auto* x = reinterpret_cast<const bf16*>(batch.rows.data()) + int64_t{rank.at(out.row_token + at)} * world.hidden;
      for (int n = 0; n < GemmArgs::kColumns; ++n) {
        float wanted = 0.0f;
        for (int i = 0; i < world.hidden; ++i) wanted += to_float(x[i]) * GemmArgs::factor(i, n);
        ASSERT_EQ(rank.at(gemm.y + at * GemmArgs::kColumns + n), wanted) << "expert " << expert << ", row " << row;
      }
    }
  }
}

}  // namespace

std::unique_ptr<ExpertGemm> make_cpu_gemm(const GemmArgs& args) { return std::make_unique<CpuGemm>(args); }

void expect_gemm_beside_held_rows(const MakeMachine& make, const MakeGemm& make_gemm, bool words) {
  const spec::World world = held_world();
  const DispatchCase slab{.layout = Layout::slab, .quantise = Quantise::fp8_pow2, .max_tokens = kGroup / kRanks,
                          .tells_ready = true};
  MachineOptions options{.words = words, .held_writer = kWriter, .held_reader = kReader};
  if (words) options.window_bytes = size_t{32} << 20;
  std::atomic<ExpertGemm*> shared = nullptr;
  std::atomic<bool> is_over = false;  // the reader's dispatch
  const auto errors = StepWorld(world, make, options).run([&](StepRank& rank, Bootstrap& group) {
    const int own = rank.context().topo.rank;
    rank.plan();
    rank.prepare_dispatch(slab);
    const GemmArgs args = own == kReader ? gemm_of(rank, world) : GemmArgs{};
    const auto gemm = own == kReader ? make_gemm(args) : nullptr;
    group.barrier("nobody allocates while others' kernels wait");
    if (own != kReader) {
      EXPECT_TRUE(rank.machine().backend().dispatch(rank.dispatch_args()));
      if (own != kWriter) return group.barrier("the GEMM is over");
      const HeldRows held(rank, rank.dispatch_args().call, words);
      held.deliver_headers();
      const auto deadline = steady_clock::now() + std::chrono::seconds(kGemmSeconds);
      const auto has_first = [&] { return shared != nullptr && shared.load()->is_done(0); };
      while (!has_first() && steady_clock::now() < deadline) std::this_thread::yield();
      EXPECT_TRUE(has_first()) << "the first expert waits for rows of the second";
      EXPECT_FALSE(shared != nullptr && shared.load()->is_done(1)) << "the second expert has begun without its rows";
      EXPECT_FALSE(is_over) << "nothing was held back";
      held.deliver_rows();
      return group.barrier("the GEMM is over");
    }
    gemm->start();
    shared = gemm.get();
    EXPECT_TRUE(rank.machine().backend().dispatch(rank.dispatch_args()));
    is_over = true;
    EXPECT_TRUE(gemm->finish());
    expect_product(rank, world, args);
    group.barrier("the GEMM is over");
  });
  EXPECT_THAT(errors, NoneFailed());
}

}  // namespace heddle::testing
