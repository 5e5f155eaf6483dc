#include "spec/dispatch.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/math.hpp"
#include "spec/quantise.hpp"

namespace heddle::spec {
namespace {

/// A row as it travels: payload and scales.
using WireRow = QuantisedRow;
using WireRows = std::vector<std::vector<WireRow>>;  // [ranks][tokens]

/// The pair (received token, column) that a row of an expert stands for.
struct Hit {
  int index;
  int k;
};

struct Call {
  const World& world;
  const DispatchOptions& options;
  const Mask& mask;
  const WireRows& wire;
};

void check(const World& world, const DispatchOptions& options) {
  check(world);
  const bool slab = options.layout == Layout::slab;
  HEDDLE_CHECK(options.alignment >= 1, "spec: alignment is {}, legal: 1 and up", options.alignment);
  HEDDLE_CHECK(world.topk > 0 || options.layout == Layout::token_major, "spec: topk is 0, legal only token-major");
  HEDDLE_CHECK(!options.capacity || (!slab && *options.capacity >= 0),
               "spec: capacity is {}, legal: none for a slab, else 0 and up", *options.capacity);
  HEDDLE_CHECK(options.quantise == Quantise::none || (world.row_bytes == 2 * world.hidden && world.scale_words == 0),
               "spec: rows have {} bytes and {} scale words, quantising takes {} (bf16) and 0", world.row_bytes,
               world.scale_words, 2 * world.hidden);
  const bool bounded = slab || options.max_tokens > 0 || (options.fixed_size && !options.capacity);
  for (const Batch& batch : world.batches) {
    HEDDLE_CHECK(!bounded || batch.tokens <= options.max_tokens, "spec: tokens is {}, legal: 0 to max_tokens = {}",
                 batch.tokens, options.max_tokens);
  }
}

WireRow wire_row(const World& world, const DispatchOptions& options, const Batch& batch, int token) {
  const auto row = batch.rows.begin() + std::int64_t{token} * world.row_bytes;
  const Bytes payload(row, row + world.row_bytes);
  if (options.quantise != Quantise::none) return quantise_row(options.quantise, payload, options.global_scale);
  const auto scales = batch.scales.begin() + std::int64_t{token} * world.scale_words;
  return {payload, {scales, scales + world.scale_words}};
}

WireRows wire_rows(const World& world, const DispatchOptions& options) {
  WireRows all(world.ranks);
  for (int rank = 0; rank < world.ranks; ++rank) {
    const Batch& batch = world.batches[rank];
    for (int token = 0; token < batch.tokens; ++token) {
      all[rank].push_back(wire_row(world, options, batch, token));
    }
  }
  return all;
}

/// Who sent which tokens: by source ascending, then in token order.
void arrive(const Call& call, int rank, Received& out) {
  out.recv_offset = {0};
  for (int source = 0; source < call.world.ranks; ++source) {
    const Batch& batch = call.world.batches[source];
    const bool masked = closed(call.mask, rank, source);
    for (int token = 0; !masked && token < batch.tokens; ++token) {
      if (reaches(call.world, batch, token, rank)) out.recv_token.push_back(token);
    }
    out.recv_offset.push_back(static_cast<std::int32_t>(out.recv_token.size()));
    out.source_tokens.push_back(masked ? 0 : batch.tokens);
    out.status.push_back(masked ? Status::masked : Status::arrived);
  }
}

int source_of(const Received& out, int index) {
  int source = 0;
  while (out.recv_offset[source + 1] <= index) ++source;
  return source;
}

void keep_weights(const World& world, int rank, Received& out) {
  for (int index = 0; index < static_cast<int>(out.recv_token.size()); ++index) {
    const Batch& batch = world.batches[source_of(out, index)];
    for (int k = 0; k < world.topk; ++k) {
      const int token = out.recv_token[index];
      const bool local = owns(world, rank, id_at(world, batch, token, k)) && !batch.weights.empty();
      out.recv_weights.push_back(local ? batch.weights[std::int64_t{token} * world.topk + k] : 0.0f);
    }
  }
}

void size_rows(const Call& call, int rank, std::int64_t exact, Received& out) {
  const DispatchOptions& options = call.options;
  const bool worst = options.fixed_size || options.layout == Layout::slab;
  out.rows = options.capacity ? *options.capacity : worst ? worst_rows(call.world, options, rank) : exact;
  out.row_bytes = options.quantise == Quantise::none ? call.world.row_bytes
                                                     : quantised_row_bytes(options.quantise, call.world.hidden);
  out.scale_words = options.quantise == Quantise::none ? call.world.scale_words
                                                       : quantised_scale_words(options.quantise, call.world.hidden);
  out.x.resize(out.rows * out.row_bytes);
  out.scales.resize(out.rows * out.scale_words);
  out.row_source.assign(out.rows, -1);
  out.row_token.assign(out.rows, -1);
}

/// False, and counted, if the row is beyond the capacity.
bool put_row(const Call& call, std::int64_t row, int index, Received& out) {
  if (row >= out.rows) {
    ++out.num_dropped;
    return false;
  }
  const int source = source_of(out, index);
  const WireRow& from = call.wire[source][out.recv_token[index]];
  std::copy(from.values.begin(), from.values.end(), out.x.begin() + row * out.row_bytes);
  std::copy(from.scales.begin(), from.scales.end(), out.scales.begin() + row * out.scale_words);
  out.row_source[row] = source;
  out.row_token[row] = out.recv_token[index];
  return true;
}

void place_tokens(const Call& call, int rank, Received& out) {
  const World& world = call.world;
  const int n = static_cast<int>(out.recv_token.size());
  size_rows(call, rank, n, out);
  out.ids.assign(out.rows * world.topk, -1);
  out.weights.assign(out.rows * world.topk, 0.0f);
  for (int row = 0; row < n; ++row) {
    if (!put_row(call, row, row, out)) continue;
    for (int k = 0; k < world.topk; ++k) {
      const std::int32_t id = id_at(world, world.batches[out.row_source[row]], out.row_token[row], k);
      if (!owns(world, rank, id)) continue;
      const std::int64_t cell = std::int64_t{row} * world.topk + k;
      out.ids[cell] = id - first_expert(world, rank);
      out.weights[cell] = out.recv_weights[cell];
      ++out.counts[out.ids[cell]];
    }
  }
}

std::vector<Hit> hits_of(const World& world, int expert, const Received& out) {
  std::vector<Hit> hits;
  for (int index = 0; index < static_cast<int>(out.recv_token.size()); ++index) {
    const Batch& batch = world.batches[source_of(out, index)];
    for (int k = 0; k < world.topk; ++k) {
      const int token = out.recv_token[index];
      if (id_at(world, batch, token, k) == expert && is_first_column(world, batch, token, k))
        hits.push_back({index, k});
    }
  }
  return hits;
}

void put_hit(const Call& call, std::int64_t row, Hit hit, int expert, Received& out) {
  if (!put_row(call, row, hit.index, out)) return;
  const Batch& batch = call.world.batches[out.row_source[row]];
  out.row_weights[row] = summed_weight(call.world, batch.weights, batch, out.row_token[row], hit.k);
  out.row_of[std::int64_t{hit.index} * call.world.topk + hit.k] = static_cast<std::int32_t>(row);
  ++out.counts[expert];
}

/// For each source: how many of the expert's rows are its own, and after how many others they begin.
void say_ranges(const World& world, const std::vector<Hit>& hits, Received& out) {
  std::uint64_t begin = 0;
  for (int source = 0; source < world.ranks; ++source) {
    std::uint64_t count = 0;
    for (const Hit& hit : hits) count += source_of(out, hit.index) == source;
    out.layout_range.push_back(static_cast<std::int64_t>(begin << 32 | count));
    begin += count;
  }
}

void place_hits(const Call& call, int rank, Received& out) {
  const bool slab = call.options.layout == Layout::slab;
  const int first = first_expert(call.world, rank);
  const int locals = local_experts(call.world, rank);
  std::vector<std::vector<Hit>> hits;
  std::vector<std::int64_t> start = {0};
  for (int expert = 0; expert < locals; ++expert) {
    hits.push_back(hits_of(call.world, first + expert, out));
    const auto count = static_cast<std::int64_t>(hits[expert].size());
    const std::int64_t whole = std::int64_t{call.world.ranks} * call.options.max_tokens;
    start.push_back(start[expert] + (slab ? whole : round_up(count, call.options.alignment)));
  }
  size_rows(call, rank, start[locals], out);
  out.row_weights.assign(out.rows, 0.0f);
  out.row_of.assign(out.recv_token.size() * call.world.topk, -1);
  for (int expert = 0; expert < locals; ++expert) {
    std::int64_t row = start[expert];
    for (const Hit& hit : hits[expert]) put_hit(call, row++, hit, expert, out);
    if (slab) say_ranges(call.world, hits[expert], out);
  }
  for (std::int64_t row : start) out.expert_offsets.push_back(std::min(row, out.rows));
}

Received receive(const Call& call, int rank) {
  Received out;
  out.layout = call.options.layout;
  arrive(call, rank, out);
  keep_weights(call.world, rank, out);
  out.counts.assign(local_experts(call.world, rank), 0);
  if (out.layout == Layout::token_major) place_tokens(call, rank, out);
  else place_hits(call, rank, out);
  for (std::int32_t count : out.counts) {
    out.aligned_counts.push_back(static_cast<std::int32_t>(round_up(count, call.options.alignment)));
  }
  return out;
}

}  // namespace

std::int64_t worst_rows(const World& world, const DispatchOptions& options, int rank) {
  const std::int64_t tokens = std::int64_t{world.ranks} * options.max_tokens;
  const std::int64_t locals = local_experts(world, rank);
  if (options.layout == Layout::token_major) return tokens;
  if (options.layout == Layout::slab) return locals * tokens;
  const std::int64_t hits = tokens * std::min<std::int64_t>(world.topk, locals);
  return round_up(hits + (options.alignment - 1) * locals, options.alignment);
}

std::vector<Received> dispatch(const World& world, const DispatchOptions& options, const Mask& mask) {
  check(world, options);
  const WireRows wire = wire_rows(world, options);
  std::vector<Received> all;
  for (int rank = 0; rank < world.ranks; ++rank) all.push_back(receive({world, options, mask, wire}, rank));
  return all;
}

}  // namespace heddle::spec
