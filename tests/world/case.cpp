#include "world/case.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "device/quantise_args.hpp"
#include "protocol/combine.hpp"
#include "support/dice.hpp"

namespace heddle::testing {
namespace {

int max_tokens_of(const Case& c) { return c.max_tokens > 0 ? c.max_tokens : std::max(c.world.tokens, 1); }

spec::DispatchOptions spec_options(const Case& c) {
  spec::DispatchOptions options;
  options.layout = c.layout;
  options.alignment = c.alignment;
  options.max_tokens = max_tokens_of(c);
  options.fixed_size = c.fixed_size || c.split_dispatch;
  if (c.capacity >= 0) options.capacity = c.capacity;
  options.zero_padding = c.zero_padding;
  options.quantise = static_cast<spec::Quantise>(c.quantise);
  options.global_scale = c.global_scale;
  return options;
}

/// Late weights that do not fit beside one row make the rows travel alone.
bool travels_alone(const Case& c) { return c.sum == Sum::alone || (c.sum == Sum::late && !c.late_fits); }

spec::Pack pack_of(ResultWire wire) {
  return wire == ResultWire::fp8 ? spec::Pack::fp8 : wire == ResultWire::logfmt10 ? spec::Pack::logfmt10 : spec::Pack::none;
}

Shape dispatch_shape(const Case& c) {
  const bool quantises = c.quantise != Quantise::none;
  Shape shape{.layout = c.layout};
  shape.payload_bytes = static_cast<int>(row_bytes(c.world.hidden, c.world.dtype, c.quantise));
  shape.scale_words =
      quantises ? static_cast<int>(num_scale_words(c.world.hidden, c.quantise)) : c.world.scale_words;
  shape.topk = c.by_rank_map ? 0 : c.world.topk;
  shape.experts = c.world.experts;
  return shape;
}

Shape combine_shape(const Case& c, Weights weights) {
  Shape shape{.kind = Kind::combine, .weights = weights};
  set_wire(shape, c.wire, c.world.hidden, travels_alone(c) ? c.in_dtype : c.out_dtype);
  shape.topk = c.by_rank_map ? 0 : c.world.topk;
  shape.max_tokens = max_tokens_of(c);
  shape.row_weights = c.row_weights;
  return shape;
}

std::vector<int64_t> heap_bytes_of(const Case& c) {
  if (c.heap == Heap::none || c.heap == Heap::nowhere) return {};
  const int64_t row = dispatch_shape(c).payload_bytes;
  const int64_t local = c.world.experts / c.world.ranks + 1;
  const int64_t sent = int64_t{c.world.ranks} * max_tokens_of(c);
  const int64_t rows = c.layout == Layout::slab ? local * sent : sent * std::min<int64_t>(c.world.topk, local);
  // Room for two: the next output is made while the last is still there.
  const int64_t ample = 2 * ((rows + c.alignment * (local + 1)) * row + kCellAlign);
  std::vector<int64_t> bytes(static_cast<size_t>(c.world.ranks), ample);
  if (c.heap == Heap::one_row) bytes[0] = row;
  if (c.heap == Heap::empty_once) bytes[0] = 0;
  return bytes;
}

/// Bytes of a range that holds `slots` of the shape.
int64_t range_for(const Shape& shape, int ranks, int64_t slots) {
  const int64_t stride = Slot::of(shape).stride;
  return Range::of(0, table_bytes(shape, ranks), stride).slots + slots * stride;
}

}  // namespace

std::string Case::describe() const {
  std::string what = fmt::format(
      "{} {}x{} topk {} experts {} hidden {} {}+{} seed {}, layout {} align {} quantise {} scales {}",
      name_of(world.routing), world.ranks, world.tokens, world.topk, world.experts, world.hidden,
      heddle::name_of(world.dtype), world.scale_words, world.seed, static_cast<int>(layout), alignment,
      static_cast<int>(quantise), static_cast<int>(scale_layout));
  if (by_rank_map) what += " by rank map";
  if (fixed_size) what += fmt::format(" fixed (capacity {})", capacity);
  if (max_tokens > 0) what += fmt::format(" max_tokens {}", max_tokens);
  if (split_dispatch) what += " split";
  what += fmt::format("; sum {} {} to {} {} biases", static_cast<int>(sum), heddle::name_of(in_dtype),
                      heddle::name_of(out_dtype), biases);
  if (wire != ResultWire::usual) what += fmt::format(" by wire {}", static_cast<int>(wire));
  if (row_weights) what += " with row weights";
  if (split_combine) what += " split";
  return what + fmt::format("; {} slots, {} times, heap {}", slots, repeats, static_cast<int>(heap));
}

Meaning meaning_of(const Case& c, const spec::Mask& mask) { return meaning_of(c, mask, mask); }

spec::Mask without(int ranks, const std::vector<int>& gone) {
  spec::Mask mask(static_cast<size_t>(ranks), std::vector<bool>(static_cast<size_t>(ranks), false));
  for (const int rank : gone) mask[rank].assign(mask[rank].size(), true);
  return mask;
}

Meaning meaning_of(const Case& c, const spec::Mask& mask, const spec::Mask& later) {
  Meaning m;
  m.world = make_world(c.world);
  if (c.by_rank_map) m.world = as_rank_map(std::move(m.world));
  spec::World sent = m.world;
  for (spec::Batch& batch : sent.batches) {
    if (!c.with_weights) batch.weights.clear();
  }
  m.plans = spec::plan(sent);
  m.received = spec::dispatch(sent, spec_options(c), mask);
  spec::CombineOptions options{.in_dtype = c.in_dtype, .wire_dtype = c.wire == ResultWire::float32 ? DType::f32 : c.out_dtype,
                               .pack = pack_of(c.wire), .out_dtype = c.out_dtype, .weighted = c.sum != Sum::plain,
                               .unreduced = travels_alone(c)};
  Dice dice(c.world.seed * 77 + 5);
  for (int rank = 0; rank < c.world.ranks; ++rank) {
    const spec::Received& at = m.received[rank];
    m.outputs.push_back(make_outputs(at, c.world.hidden, c.in_dtype, c.world.values, c.world.seed + 100 + rank));
    const int columns = c.layout == Layout::token_major ? m.world.topk : 1;
    m.row_weights.emplace_back();
    for (int64_t i = 0; c.row_weights && i < at.rows * columns; ++i) {
      m.row_weights.back().push_back(static_cast<float>(dice.below(1000)) * 0.125f);
    }
    spec::Received whole{.rows = m.world.batches[rank].tokens};
    whole.row_source.assign(whole.rows, 0);
    m.biases.emplace_back();
    for (int i = 0; i < c.biases; ++i) {
      m.biases.back().push_back(make_outputs(whole, c.world.hidden, c.out_dtype, c.world.values, c.world.seed + 200 + i));
    }
    if (c.sum == Sum::late || c.sum == Sum::alone) options.weights.push_back(m.world.batches[rank].weights);
  }
  if (c.row_weights) options.row_weights = m.row_weights;
  options.biases = m.biases;
  m.combined = spec::combine(sent, m.received, m.outputs, options, later);
  return m;
}

WorldSettings settings_for(const Case& c) {
  WorldSettings settings;
  settings.ranks = c.world.ranks;
  settings.config.experts = c.world.experts;
  settings.config.max_tokens = std::max(c.world.tokens, 1);
  settings.config.timeout = std::chrono::seconds(60);
  settings.seed = c.world.seed;
  settings.story = c.describe();
  const Shape out = dispatch_shape(c);
  const Weights weights = travels_alone(c)                          ? Weights::at_source
                          : c.sum == Sum::late ? Weights::late : Weights::none;
  const Shape back = combine_shape(c, weights);
  const int64_t enough = c.slots > 0 ? c.slots : std::max(c.world.tokens, 1);
  int64_t range = std::max(range_for(out, c.world.ranks, c.split_dispatch ? c.world.tokens : enough),
                           range_for(back, c.world.ranks, (c.split_combine ? c.world.tokens : enough) * places_of(back)));
  if (c.sum == Sum::late && !c.late_fits) {
    range = std::min(range, range_for(combine_shape(c, Weights::late), c.world.ranks, 1) - kCellAlign);
  }
  settings.window_bytes = window_bytes_for(c.world.ranks, range);
  settings.in_place = c.heap != Heap::none;
  settings.heap_bytes = heap_bytes_of(c);
  return settings;
}

}  // namespace heddle::testing
