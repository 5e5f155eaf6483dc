#include "support/routing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "base/error.hpp"

namespace heddle::testing {
namespace {

/// The standard's engine, but not its distributions: those differ between libraries.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}

  int below(int sides) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(sides)); }
  std::uint32_t word() { return static_cast<std::uint32_t>(engine_()); }
  float unit() { return (static_cast<float>(engine_() >> 41) + 0.5f) * 0x1p-23f; }  // within (0, 1)

 private:
  std::mt19937_64 engine_;
};

using Ids = std::vector<std::int32_t>;

/// The first `count` of `pool` in random order, -1 beyond its end.
Ids some_of(Ids pool, int count, Dice& dice) {
  for (std::size_t i = pool.size(); i > 1; --i) std::swap(pool[i - 1], pool[dice.below(static_cast<int>(i))]);
  pool.resize(count, -1);
  return pool;
}

Ids from_to(int first, int last) {
  Ids ids(last - first);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

/// Distinct ids, expert e with weight (e + 1)^-skew: the keys u^(1 / weight) in order are such a draw.
Ids zipf(const WorldOptions& options, Dice& dice) {
  std::vector<std::pair<double, std::int32_t>> keys;
  for (int e = 0; e < options.experts; ++e) {
    keys.emplace_back(std::log(dice.unit()) * std::pow(e + 1, options.skew), e);
  }
  std::sort(keys.rbegin(), keys.rend());
  Ids ids(options.topk, -1);
  for (int k = 0; k < std::min(options.topk, options.experts); ++k) ids[k] = keys[k].second;
  return ids;
}

Ids with_repeats(const WorldOptions& options, Dice& dice) {
  const int few = std::min(options.experts, std::max(2, options.topk / 2));
  const int base = dice.below(options.experts - few + 1);
  Ids ids;
  for (int k = 0; k < options.topk; ++k) ids.push_back(dice.below(6) == 0 ? -1 : base + dice.below(few));
  return ids;
}

Ids ids_of_token(const WorldOptions& options, Dice& dice) {
  const int last = options.experts - 1;
  const auto first_of_last_rank = std::int64_t{options.ranks - 1} * options.experts / options.ranks;
  Ids ids = some_of(from_to(0, options.experts), options.topk, dice);
  switch (options.routing) {
    case Routing::zipf: return zipf(options, dice);
    case Routing::one_expert: return some_of({last}, options.topk, dice);
    case Routing::nothing: return Ids(options.topk, -1);
    case Routing::one_rank:
      return some_of(from_to(static_cast<int>(first_of_last_rank), options.experts), options.topk, dice);
    case Routing::holes:
      for (std::int32_t& id : ids) id = dice.below(3) == 0 ? -1 : id;
      return ids;
    case Routing::duplicates: return with_repeats(options, dice);
    case Routing::uniform:
    case Routing::empty_rank:
    case Routing::ragged: return ids;
  }
  return ids;
}

template <class T>
void append(T element, spec::Bytes& to) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&element);
  to.insert(to.end(), bytes, bytes + sizeof element);
}

void append_value(DType dtype, Values values, Dice& dice, spec::Bytes& to) {
  const float value = values == Values::exact ? static_cast<float>(dice.below(5) - 2) : dice.unit() * 8 - 4;
  switch (dtype) {
    case DType::e4m3: return append(to_e4m3(value), to);
    case DType::bf16: return append(to_bf16(value), to);
    case DType::f16: return append(to_f16(value), to);
    case DType::f32: return append(value, to);
    case DType::u8: return to.push_back(static_cast<std::byte>(dice.word()));
    default: fail(ErrorCode::usage, "no rows of {}", heddle::name_of(dtype));
  }
}

int tokens_of(const WorldOptions& options, int rank, Dice& dice) {
  if (options.routing == Routing::empty_rank && rank == 0) return 0;
  return options.routing == Routing::ragged ? dice.below(options.tokens + 1) : options.tokens;
}

spec::Batch make_batch(const WorldOptions& options, int rank) {
  Dice dice(options.seed * 1000003 + static_cast<std::uint64_t>(rank));
  spec::Batch batch;
  batch.tokens = tokens_of(options, rank, dice);
  for (int token = 0; token < batch.tokens; ++token) {
    for (std::int32_t id : ids_of_token(options, dice)) {
      const float weight = options.values == Values::exact ? static_cast<float>(1 + dice.below(2)) : dice.unit();
      batch.ids.push_back(id);
      batch.weights.push_back(id < 0 ? std::numeric_limits<float>::quiet_NaN() : weight);
    }
    for (int h = 0; h < options.hidden; ++h) append_value(options.dtype, options.values, dice, batch.rows);
    for (int word = 0; word < options.scale_words; ++word) batch.scales.push_back(dice.word());
  }
  for (size_t at = 0; options.ones > 0 && at + 8 <= batch.rows.size(); at += 8) {
    if (dice.below(options.ones) == 0) std::fill_n(batch.rows.begin() + static_cast<std::ptrdiff_t>(at), 8, std::byte{0xFF});
  }
  return batch;
}

}  // namespace

const char* name_of(Routing routing) {
  constexpr const char* kNames[] = {"uniform",  "zipf",  "one_expert", "nothing", "empty_rank",
                                    "one_rank", "holes", "duplicates", "ragged"};
  return kNames[static_cast<int>(routing)];
}

spec::World make_world(const WorldOptions& options) {
  spec::World world{.ranks = options.ranks,
                    .experts = options.experts,
                    .topk = options.topk,
                    .hidden = options.hidden,
                    .row_bytes = options.hidden * static_cast<int>(size_of(options.dtype)),
                    .scale_words = options.scale_words,
                    .batches = {}};
  for (int rank = 0; rank < options.ranks; ++rank) world.batches.push_back(make_batch(options, rank));
  return world;
}

spec::World as_rank_map(spec::World world) {
  for (spec::Batch& batch : world.batches) {
    for (int token = 0; token < batch.tokens; ++token) {
      for (int rank = 0; rank < world.ranks; ++rank) batch.rank_map.push_back(reaches(world, batch, token, rank));
    }
    batch.ids.clear();
    batch.weights.clear();
  }
  world.topk = 0;
  return world;
}

spec::Bytes make_outputs(const spec::Received& received, int hidden, DType dtype, Values values, std::uint64_t seed) {
  spec::Bytes outputs;
  Dice dice(seed);
  for (std::int64_t row = 0; row < received.rows; ++row) {
    for (int h = 0; h < hidden; ++h) {
      if (received.row_source[row] >= 0) append_value(dtype, values, dice, outputs);
      else outputs.insert(outputs.end(), size_of(dtype), std::byte{0xFF});
    }
  }
  return outputs;
}

}  // namespace heddle::testing
