// A rank that is a thread with a Buffer on its GPU, a stream and a batch whose way there and back is known.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "cuda/gpu_machine.hpp"
#include "cuda/rounds.hpp"
#include "cuda/streams.hpp"
#include "ops/connect.hpp"
#include "support/buffer_access.hpp"
#include "support/errors.hpp"
#include "support/rank_memory.hpp"
#include "support/thread_ranks.hpp"

namespace heddle::testing {

inline constexpr int kExperts = 8;
inline constexpr int kTopk = 2;
inline constexpr int kTokens = 48;
inline constexpr int kHidden = 512;

class GpuRank {
 public:
  GpuRank(Bootstrap& group, Config config)
      : rank_(group.rank()), parts_(connect(group, on_gpu(config, group))), backend_(*parts_.backend), memory_(backend_),
        buffer_(BufferAccess::make(std::move(parts_))) {
    for (int token = 0; token < kTokens; ++token) {
      for (int k = 0; k < kTopk; ++k) ids_.push_back((token + 3 * k) % kExperts);
    }
    x_ = lend(view_of(rows_.data(), DType::bf16, {kTokens, kHidden}));
    wrong_ = lend(view_of(&zero_, DType::i64, {1}));
    std::set<int> all;
    for (int rank = 0; rank < group.size(); ++rank) all.insert(rank);
    expect_rows_of(all);
  }

  int index() const { return rank_; }
  Backend& backend() { return backend_; }
  Buffer& buffer() { return buffer_; }
  const Stream& stream() const { return stream_; }
  Placement here() const { return {.stream = stream_.get()}; }
  std::vector<int32_t>& ids() { return ids_; }
  TensorView ids_view() { return lend(view_of(ids_.data(), DType::i32, {kTokens, kTopk})); }
  DispatchInput input() const { return {.x = x_}; }
  const TensorView& x() const { return x_; }
  static DispatchOptions fixed(const Placement& on) { return {.fixed_size = true, .on = on}; }

  RowPattern pattern(int round) const {
    return {.rank = rank_, .tokens = kTokens, .hidden = kHidden, .round = static_cast<uint32_t>(round)};
  }
  void fill(int round) const { fill_rows(x_.data, pattern(round), stream_.get()); }
  void count_wrong(const void* combined, int round, const Stream& where) const {
    count_bad_rows(combined, static_cast<const int32_t*>(hits_view_.data), pattern(round),
                   static_cast<unsigned long long*>(wrong_.data), where.get());
  }
  /// From now on, rows come back from these ranks only.
  void expect_rows_of(const std::set<int>& members) {
    std::vector<int32_t> hits;
    for (int token = 0; token < kTokens; ++token) {
      std::set<int> owners;
      for (int k = 0; k < kTopk; ++k) owners.insert(buffer_.topology().owner_of(ids_[token * kTopk + k]));
      hits.push_back(static_cast<int32_t>(std::ranges::count_if(owners, [&](int owner) { return members.contains(owner); })));
    }
    hits_view_ = lend(view_of(hits.data(), DType::i32, {kTokens}));
  }
  int64_t wrong() const {
    stream_.wait();
    int64_t count = -1;
    const auto bytes = fetch(wrong_);
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(&count));
    return count;
  }
  /// There and back, without experts.
  Combined round_trip(const Plan& plan, const Placement& on) {
    const Received received = buffer_.dispatch(plan, input(), fixed(on));
    return buffer_.combine(received.handle, {.x = received.x.view}, {.on = on});
  }
  void expect_usable() {
    const Plan plan = buffer_.plan(ids_view());
    fill(1000);
    stream_.wait();
    count_wrong(round_trip(plan, {}).x.view.data, 1000, stream_);
    EXPECT_EQ(wrong(), 0) << "rank " << rank_;
  }

 private:
  Config on_gpu(Config config, const Bootstrap& group) const {
    config.device = {DeviceKind::cuda, group.rank() % count_gpus()};
    config.experts = kExperts;
    config.max_tokens = kTokens;
    config.window_bytes = int64_t{8} << 20;
    use_gpu(config.device.index);
    return config;
  }

  int rank_;
  BufferParts parts_;
  Backend& backend_;
  RankMemory memory_;
  Buffer buffer_;
  Stream stream_;
  std::vector<int32_t> ids_;
  std::vector<uint16_t> rows_ = std::vector<uint16_t>(kTokens * kHidden);
  int64_t zero_ = 0;
  TensorView x_, wrong_, hits_view_;
};

inline void on_gpus(int ranks, const Config& config, const std::function<void(GpuRank&, Bootstrap&)>& body) {
  const Errors errors = run_threads(ranks, [&](Bootstrap& group) {
    GpuRank rank(group, config);
    group.barrier("start");
    body(rank, group);
    group.barrier("end");
  });
  EXPECT_THAT(errors, NoneFailed());
}

}  // namespace heddle::testing
