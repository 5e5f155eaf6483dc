// Low-latency calls as a decoding engine makes them: a captured graph for each batch size, replayed in any order with routing
// that changes each time, eager and split calls between; each rank has another size in each round. Every row is checked.
//   HEDDLE_ROUNDS   rounds a case, default 60
#include <gmock/gmock.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <thread>

#include "cuda/decode_rounds.hpp"
#include "cuda/gpu_machine.hpp"
#include "cuda/rounds.hpp"
#include "cuda/streams.hpp"
#include "ops/connect.hpp"
#include "support/buffer_access.hpp"
#include "support/errors.hpp"
#include "support/rank_memory.hpp"
#include "support/thread_ranks.hpp"

namespace heddle::testing {
namespace {

constexpr int kMost = 128;  // tokens of a rank
constexpr int kTopk = 6;
constexpr int kExperts = 24;
constexpr int kHidden = 1152;  // two parts of 512 and a short one
constexpr int kTogether = 16;  // rounds queued at once: a full queue would hold a lock that other ranks need

int rounds() {
  const char* text = std::getenv("HEDDLE_ROUNDS");
  return text == nullptr ? 60 : std::atoi(text);
}

struct DecodeLoad {
  const char* name;
  int ranks = 2;
  bool words = true;  // else counted puts, as where peers do not share GPU memory
  bool late = false;  // weights come with the combine
};

/// Batches of one size: their memory, and a graph of calls that work on it.
struct Sized {
  TensorView x, ids, weights, experts;
  std::optional<Graph> graph;
  Combined combined;  // of the graph
};

class DecodeRank {
 public:
  DecodeRank(Bootstrap& group, const DecodeLoad& load)
      : load_(load), rank_(group.rank()), parts_(connected(group, load)), backend_(*parts_.backend), memory_(backend_),
        buffer_(BufferAccess::make(std::move(parts_))) {
    const std::vector<uint64_t> none(1);
    bad_ = lend(view_of(const_cast<uint64_t*>(none.data()), DType::i64, {1}));
    for (int tokens = 1; tokens <= kMost; tokens *= 2) add(tokens);
    add(kMost - 3);
  }

  void capture() {
    for (auto& [tokens, sized] : sizes_) {
      sized.graph.emplace(stream_.get(), [&, &sized = sized] { sized.combined = there_and_back(sized); });
    }
  }

  void run_round(int round) {
    auto at = sizes_.begin();
    std::advance(at, (round * 7 + rank_ * 3 + round / 5) % static_cast<int>(sizes_.size()));
    auto& [tokens, sized] = *at;
    const DecodeBatch batch{.rank = rank_, .tokens = tokens, .hidden = kHidden, .topk = kTopk, .experts = kExperts,
                            .round = static_cast<uint32_t>(round)};
    make_batch(sized.x.data, static_cast<int64_t*>(sized.ids.data), batch, stream_.get());
    Combined eager;
    if (round % 5 == 1) eager = split_there_and_back(sized);
    else if (round % 5 == 3) eager = there_and_back(sized);
    else sized.graph->replay();
    const Tensor& seen = eager.x.is_set() ? eager.x : sized.combined.x;
    count_bad_sums(seen.view.data, batch, static_cast<unsigned long long*>(bad_.data), stream_.get());
    if (round % kTogether == kTogether - 1) stream_.wait();
  }

  uint64_t wrong() const {
    stream_.wait();
    uint64_t count = ~uint64_t{0};
    const auto bytes = fetch(bad_);
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(&count));
    return count;
  }

 private:
  static BufferParts connected(Bootstrap& group, const DecodeLoad& load) {
    const Config config{.experts = kExperts, .max_tokens = kMost, .window_bytes = int64_t{32} << 20,
                        .device = {DeviceKind::cuda, group.rank() % count_gpus()}};
    use_gpu(config.device.index);
    BufferParts parts = connect(group, config);
    EXPECT_TRUE(parts.words);
    parts.words = load.words;
    return parts;
  }

  void add(int tokens) {
    Sized& sized = sizes_[tokens];
    std::vector<uint16_t> rows(static_cast<size_t>(tokens) * kHidden);
    std::vector<int64_t> ids(static_cast<size_t>(tokens) * kTopk);
    std::vector<float> weights;
    for (int i = 0; i < tokens * kTopk; ++i) weights.push_back(static_cast<float>(1 << i % kTopk % 3));
    sized.x = lend(view_of(rows.data(), DType::bf16, {tokens, kHidden}));
    sized.ids = lend(view_of(ids.data(), DType::i64, {tokens, kTopk}));
    sized.weights = lend(view_of(weights.data(), DType::f32, {tokens, kTopk}));
    const int64_t slab = int64_t{buffer_.topology().num_local(rank_)} * load_.ranks * kMost;
    std::vector<uint16_t> outputs(static_cast<size_t>(slab) * kHidden);
    sized.experts = lend(view_of(outputs.data(), DType::bf16, {slab, kHidden}));
  }

  DispatchInput input(const Sized& sized) const {
    DispatchInput input{.x = sized.x, .scales = {}, .weights = {}};
    if (!load_.late) input.weights = sized.weights;
    return input;
  }
  DispatchOptions to_slab() const {
    DispatchOptions options{.layout = Layout::slab, .quantise = Quantise::fp8};
    options.on.stream = stream_.get();
    return options;
  }
  CombineInput experts(const Received& received, const Sized& sized) const {
    const auto rows = static_cast<int>(received.row_source.view.numel());
    give_back(sized.experts.data,
              {.x = received.x.view.data, .scales = static_cast<const float*>(received.scales.view.data),
               .source = static_cast<const int32_t*>(received.row_source.view.data), .rows = rows,
               .group = load_.ranks * kMost, .hidden = kHidden},
              stream_.get());
    CombineInput input{.x = sized.experts};
    if (load_.late) input.weights = sized.weights;
    return input;
  }
  CombineOptions weighted() const { return {.weighted = !load_.late, .on = {.stream = stream_.get()}}; }

  Combined there_and_back(const Sized& sized) {
    const Received received = buffer_.dispatch(sized.ids, input(sized), to_slab());
    return buffer_.combine(received.handle, experts(received, sized), weighted());
  }

  /// The receives run in another thread.
  Combined split_there_and_back(const Sized& sized) {
    const auto there = buffer_.dispatch_send(sized.ids, input(sized), to_slab());
    std::thread([&] { there.receive(); }).join();
    const auto back = buffer_.combine_send(there.result->handle, experts(*there.result, sized), weighted());
    std::thread([&] { back.receive(); }).join();
    return *back.result;
  }

  const DecodeLoad load_;
  int rank_;
  BufferParts parts_;
  Backend& backend_;
  RankMemory memory_;
  Buffer buffer_;
  Stream stream_;
  TensorView bad_;
  std::map<int, Sized> sizes_;
};

class DecodeRounds : public ::testing::TestWithParam<DecodeLoad> {
 protected:
  void SetUp() override { HEDDLE_NEEDS_GPU(); }
};

TEST_P(DecodeRounds, EveryRowIsExact) {
  const DecodeLoad load = GetParam();
  const Errors errors = run_threads(load.ranks, [&](Bootstrap& group) {
    DecodeRank rank(group, load);
    rank.capture();
    group.barrier("all have captured");
    for (int round = 0; round < rounds(); ++round) rank.run_round(round);
    EXPECT_EQ(rank.wrong(), 0u) << "rank " << group.rank();
    group.barrier("end");
  });
  EXPECT_THAT(errors, NoneFailed());
}

INSTANTIATE_TEST_SUITE_P(All, DecodeRounds,
                         ::testing::Values(DecodeLoad{.name = "words"}, DecodeLoad{.name = "words_late", .late = true},
                                           DecodeLoad{.name = "words_4_ranks", .ranks = 4},
                                           DecodeLoad{.name = "counted", .words = false},
                                           DecodeLoad{.name = "counted_late", .words = false, .late = true}),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace heddle::testing
