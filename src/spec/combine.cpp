#include "spec/combine.hpp"

#include <cmath>
#include <cstring>
#include <optional>

#include "base/error.hpp"

namespace heddle::spec {
namespace {

using Sum = std::vector<float>;  // [hidden]

struct Call {
  const World& world;
  const std::vector<Received>& received;
  const std::vector<Bytes>& outputs;
  const CombineOptions& options;
  const Mask& mask;
};

/// One token of one source.
struct Token {
  int source;
  int index;
};

template <class T>
float load_as(const std::byte* at) {
  T element;
  std::memcpy(&element, at, sizeof element);
  return to_float(element);
}

float load(DType dtype, const Bytes& from, std::int64_t index) {
  const std::byte* at = from.data() + index * static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::bf16) return load_as<bf16>(at);
  if (dtype == DType::f16) return load_as<f16>(at);
  return load_as<float>(at);
}

template <class T>
void append_as(float value, Bytes& to) {
  const T element = round_to<T>(value);
  const auto* bytes = reinterpret_cast<const std::byte*>(&element);
  to.insert(to.end(), bytes, bytes + sizeof element);
}

void append(DType dtype, float value, Bytes& to) {
  if (dtype == DType::bf16) append_as<bf16>(value, to);
  else if (dtype == DType::f16) append_as<f16>(value, to);
  else append_as<float>(value, to);
}

float rounded(DType dtype, float value) {
  if (dtype == DType::bf16) return to_float(to_bf16(value));
  if (dtype == DType::f16) return to_float(to_f16(value));
  return round_to<float>(value);
}

bool is_float(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32; }

void check(const Call& call) {
  const CombineOptions& options = call.options;
  const bool token_major = call.received.at(0).layout == Layout::token_major;
  HEDDLE_CHECK(is_float(options.in_dtype) && is_float(options.out_dtype),
               "spec: combine of {} into {}, legal: bfloat16, float16, float32", name_of(options.in_dtype),
               name_of(options.out_dtype));
  HEDDLE_CHECK(options.wire_dtype == options.out_dtype || options.wire_dtype == DType::f32,
               "spec: wire_dtype is {}, legal: out_dtype = {} and float32", name_of(options.wire_dtype),
               name_of(options.out_dtype));
  HEDDLE_CHECK(!token_major || (!options.weighted && !options.unreduced),
               "spec: weighted is {} and unreduced is {}, legal in token-major: false", options.weighted,
               options.unreduced);
  const std::int64_t row_bytes = call.world.hidden * static_cast<std::int64_t>(size_of(options.in_dtype));
  const std::int64_t bias_bytes = call.world.hidden * static_cast<std::int64_t>(size_of(options.out_dtype));
  for (int rank = 0; rank < call.world.ranks; ++rank) {
    const std::int64_t tokens = call.world.batches[rank].tokens;
    const std::int64_t rows = call.received[rank].rows;
    check_size("outputs", rank, call.outputs[rank].size(), rows * row_bytes);
    if (!options.weights.empty())
      check_size("late weights", rank, options.weights[rank].size(), tokens * call.world.topk);
    if (!options.row_weights.empty()) {
      check_size("row_weights", rank, options.row_weights[rank].size(), rows * (token_major ? call.world.topk : 1));
    }
    for (std::size_t i = 0; !options.biases.empty() && i < options.biases[rank].size(); ++i) {
      check_size("bias", rank, options.biases[rank][i].size(), tokens * bias_bytes);
    }
  }
}

bool is_masked(const Call& call, int source, int owner) {
  return closed(call.mask, source, owner) || call.received[source].status[owner] == Status::masked ||
         call.received[owner].status[source] == Status::masked;
}

/// The place of a token among those that arrived at `owner`, or nothing.
std::optional<std::int64_t> arrival(const Call& call, Token token, int owner) {
  const Received& at = call.received[owner];
  if (is_masked(call, token.source, owner)) return {};
  for (int i = at.recv_offset[token.source]; i < at.recv_offset[token.source + 1]; ++i) {
    if (at.recv_token[i] == token.index) return i;
  }
  return {};
}

/// The row of `outputs` for column k (a first one) of a token at `owner`; nothing if it never came or was dropped.
std::optional<std::int64_t> row_at(const Call& call, Token token, int owner, int k) {
  const std::optional<std::int64_t> place = arrival(call, token, owner);
  if (!place) return {};
  const Received& at = call.received[owner];
  const bool token_major = at.layout == Layout::token_major;
  const std::int64_t row = token_major ? *place : at.row_of[*place * call.world.topk + k];
  if (row < 0 || row >= at.rows) return {};
  return row;
}

float weight_of(const Call& call, Token token, int k) {
  if (!call.options.weighted) return 1.0f;
  const Batch& batch = call.world.batches[token.source];
  const auto& late = call.options.weights;
  return summed_weight(call.world, late.empty() ? batch.weights : late[token.source], batch, token.index, k);
}

Sum row_of(const Call& call, int owner, std::int64_t row) {
  Sum values(call.world.hidden);
  for (int h = 0; h < call.world.hidden; ++h) {
    values[h] = load(call.options.in_dtype, call.outputs[owner], row * call.world.hidden + h);
  }
  return values;
}

/// sum = weight * row + sum, rounded once an element.
void add_row(float weight, const Sum& row, Sum& sum) {
  for (std::size_t h = 0; h < sum.size(); ++h) sum[h] = std::fma(weight, row[h], sum[h]);
}

/// What is left of a row that travelled.
Sum on_wire(const Call& call, const Sum& row) {
  if (call.options.pack == Pack::none) return row;
  return unpack(call.options.pack, pack(call.options.pack, row));
}

/// Adds the rows of a token's distinct experts at `owner` in column order. False if there are none.
bool add_hits(const Call& call, Token token, int owner, Sum& sum) {
  bool any = false;
  const Batch& batch = call.world.batches[token.source];
  for (int k = 0; k < call.world.topk; ++k) {
    if (!is_first_column(call.world, batch, token.index, k)) continue;
    if (!owns(call.world, owner, id_at(call.world, batch, token.index, k))) continue;
    const auto row = row_at(call, token, owner, k);
    if (row) add_row(weight_of(call, token, k), row_of(call, owner, *row), sum);
    any = any || row;
  }
  return any;
}

/// What `owner` sends back for a token, rounded for the wire: in token-major its row, else the sum of its hits.
std::optional<Sum> part_of(const Call& call, Token token, int owner) {
  Sum part(call.world.hidden, 0.0f);
  if (call.received[owner].layout == Layout::token_major) {
    const auto row = row_at(call, token, owner, 0);
    if (!row) return {};
    part = row_of(call, owner, *row);
  } else if (!add_hits(call, token, owner, part)) {
    return {};
  }
  if (call.options.pack != Pack::none) return on_wire(call, part);
  for (float& value : part) value = rounded(call.options.wire_dtype, value);
  return part;
}

/// +0, or bias0, or bias0 + bias1.
Sum bias_of(const Call& call, Token token) {
  Sum sum(call.world.hidden, 0.0f);
  if (call.options.biases.empty()) return sum;
  const std::vector<Bytes>& biases = call.options.biases[token.source];
  for (std::size_t i = 0; i < biases.size(); ++i) {
    for (int h = 0; h < call.world.hidden; ++h) {
      const float bias = load(call.options.out_dtype, biases[i], std::int64_t{token.index} * call.world.hidden + h);
      sum[h] = i == 0 ? bias : sum[h] + bias;
    }
  }
  return sum;
}

void add_reduced(const Call& call, Token token, Sum& sum) {
  for (int owner = 0; owner < call.world.ranks; ++owner) {
    const auto part = part_of(call, token, owner);
    if (!part) continue;
    for (int h = 0; h < call.world.hidden; ++h) sum[h] += (*part)[h];
  }
}

int owner_of(const World& world, int expert) {
  int owner = 0;
  while (!owns(world, owner, expert)) ++owner;
  return owner;
}

void add_unreduced(const Call& call, Token token, Sum& sum) {
  const Batch& batch = call.world.batches[token.source];
  for (int k = 0; k < call.world.topk; ++k) {
    if (!is_first_column(call.world, batch, token.index, k)) continue;
    const int owner = owner_of(call.world, id_at(call.world, batch, token.index, k));
    const auto row = row_at(call, token, owner, k);
    if (row) add_row(weight_of(call, token, k), on_wire(call, row_of(call, owner, *row)), sum);
  }
}

/// What the owner gave for column k: token-major by column, else by the row of the column's expert.
float returned_weight(const Call& call, Token token, int k) {
  const Batch& batch = call.world.batches[token.source];
  const std::int32_t id = id_at(call.world, batch, token.index, k);
  if (id < 0) return 0.0f;
  const int owner = owner_of(call.world, id);
  int first = 0;
  while (id_at(call.world, batch, token.index, first) != id) ++first;
  const auto row = row_at(call, token, owner, first);
  if (!row) return 0.0f;
  const bool token_major = call.received[owner].layout == Layout::token_major;
  return call.options.row_weights[owner][token_major ? *row * call.world.topk + k : *row];
}

Combined combine_at(const Call& call, int source) {
  Combined out;
  for (int owner = 0; owner < call.world.ranks; ++owner) {
    out.status.push_back(is_masked(call, source, owner) ? Status::masked : Status::arrived);
  }
  for (int index = 0; index < call.world.batches[source].tokens; ++index) {
    const Token token{source, index};
    Sum sum = bias_of(call, token);
    if (call.options.unreduced) add_unreduced(call, token, sum);
    else add_reduced(call, token, sum);
    for (float value : sum) append(call.options.out_dtype, value, out.x);
    for (int k = 0; k < call.world.topk && !call.options.row_weights.empty(); ++k) {
      out.weights.push_back(returned_weight(call, token, k));
    }
  }
  return out;
}

}  // namespace

std::vector<Combined> combine(const World& world, const std::vector<Received>& received,
                              const std::vector<Bytes>& outputs, const CombineOptions& options, const Mask& mask) {
  const Call call{world, received, outputs, options, mask};
  check(call);
  std::vector<Combined> all;
  for (int source = 0; source < world.ranks; ++source) all.push_back(combine_at(call, source));
  return all;
}

}  // namespace heddle::spec
