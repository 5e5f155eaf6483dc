// Reads one case from a file of named records, writes what the spec makes of it to another.
// A record: u32 length of the name, the name, u64 length of the data, the data. Scalars are one i64; all little-endian.
// Usage: heddle_spec_dump CASE RESULT
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>

#include "base/error.hpp"
#include "spec/combine.hpp"
#include "spec/plan.hpp"

namespace heddle::spec {
namespace {

class Case {
 public:
  explicit Case(std::istream& in) {
    std::uint32_t length = 0;
    while (in.read(reinterpret_cast<char*>(&length), sizeof length)) {
      std::string name(length, ' ');
      in.read(name.data(), length);
      std::uint64_t size = 0;
      in.read(reinterpret_cast<char*>(&size), sizeof size);
      Bytes data(size);
      in.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(size));
      HEDDLE_CHECK(in, "spec_dump: the case ends within record '{}'", name);
      records_[name] = data;
    }
  }

  bool has(const std::string& name) const { return records_.count(name) != 0; }

  template <class T>
  std::vector<T> array(const std::string& name) const {
    HEDDLE_CHECK(has(name), "spec_dump: the case has no record '{}'", name);
    const Bytes& data = records_.at(name);
    std::vector<T> elements(data.size() / sizeof(T));
    if (!data.empty()) std::memcpy(elements.data(), data.data(), data.size());
    return elements;
  }

  int number(const std::string& name) const { return static_cast<int>(array<std::int64_t>(name).at(0)); }

 private:
  std::map<std::string, Bytes> records_;
};

class Result {
 public:
  explicit Result(const char* path) : out_(path, std::ios::binary) {}

  template <class T>
  void put(int rank, const std::string& name, const std::vector<T>& elements) {
    const std::string full = std::to_string(rank) + "." + name;
    const auto length = static_cast<std::uint32_t>(full.size());
    const std::uint64_t size = elements.size() * sizeof(T);
    out_.write(reinterpret_cast<const char*>(&length), sizeof length) << full;
    out_.write(reinterpret_cast<const char*>(&size), sizeof size);
    out_.write(reinterpret_cast<const char*>(elements.data()), static_cast<std::streamsize>(size));
  }

 private:
  std::ofstream out_;
};

World world_of(const Case& from) {
  World world{.ranks = from.number("ranks"),
              .experts = from.number("experts"),
              .topk = from.number("topk"),
              .hidden = from.number("hidden"),
              .row_bytes = from.number("row_bytes"),
              .scale_words = from.number("scale_words"),
              .batches = {}};
  for (int rank = 0; rank < world.ranks; ++rank) {
    const std::string at = std::to_string(rank) + ".";
    world.batches.push_back({.tokens = from.number(at + "tokens"),
                             .rows = from.array<std::byte>(at + "rows"),
                             .scales = from.array<std::uint32_t>(at + "scales"),
                             .ids = from.array<std::int32_t>(at + "ids"),
                             .rank_map = from.array<std::uint8_t>(at + "rank_map"),
                             .weights = from.array<float>(at + "weights")});
  }
  return world;
}

Mask mask_of(const Case& from, const std::string& name, int ranks) {
  const auto flags = from.array<std::uint8_t>(name);
  Mask mask(ranks);
  for (int cell = 0; cell < ranks * ranks; ++cell) mask[cell / ranks].push_back(flags.at(cell) != 0);
  return mask;
}

DispatchOptions dispatch_options(const Case& from) {
  DispatchOptions options{.layout = static_cast<Layout>(from.number("layout")),
                          .alignment = from.number("alignment"),
                          .max_tokens = from.number("max_tokens"),
                          .fixed_size = from.number("fixed_size") != 0,
                          .zero_padding = true,
                          .quantise = static_cast<Quantise>(from.number("quantise"))};
  if (from.has("capacity")) options.capacity = from.number("capacity");
  return options;
}

/// What each rank's record of this name holds, or nothing if no rank has one.
template <class T>
std::vector<std::vector<T>> by_rank(const Case& from, const std::string& name, int ranks) {
  std::vector<std::vector<T>> all;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string full = std::to_string(rank) + "." + name;
    if (from.has(full)) all.push_back(from.array<T>(full));
  }
  return all;
}

CombineOptions combine_options(const Case& from, int ranks) {
  CombineOptions options{.in_dtype = static_cast<DType>(from.number("in_dtype")),
                         .wire_dtype = static_cast<DType>(from.number("wire_dtype")),
                         .pack = static_cast<Pack>(from.number("pack")),
                         .out_dtype = static_cast<DType>(from.number("out_dtype")),
                         .weighted = from.number("weighted") != 0,
                         .unreduced = from.number("unreduced") != 0,
                         .weights = by_rank<float>(from, "late_weights", ranks),
                         .biases = std::vector<std::vector<Bytes>>(ranks),
                         .row_weights = by_rank<float>(from, "row_weights", ranks)};
  for (const char* name : {"bias0", "bias1"}) {
    const auto biases = by_rank<std::byte>(from, name, ranks);
    for (std::size_t rank = 0; rank < biases.size(); ++rank) options.biases[rank].push_back(biases[rank]);
  }
  return options;
}

void put_plan(int rank, const Plan& plan, Result& to) {
  to.put(rank, "in_rank", plan.in_rank);
  to.put(rank, "send_offset", plan.send_offset);
  to.put(rank, "send_tokens", plan.send_tokens);
  to.put(rank, "pairs_per_expert", plan.pairs_per_expert);
  to.put(rank, "rows_per_expert", plan.rows_per_expert);
  to.put(rank, "ordinal", plan.ordinal);
}

void put_received(int rank, const Received& received, Result& to) {
  to.put(rank, "num_dropped", std::vector<std::int64_t>{received.num_dropped});
  to.put(rank, "x", received.x);
  to.put(rank, "recv_scales", received.scales);
  to.put(rank, "recv_ids", received.ids);
  to.put(rank, "row_k_weights", received.weights);
  to.put(rank, "row_weights", received.row_weights);
  to.put(rank, "counts", received.counts);
  to.put(rank, "aligned_counts", received.aligned_counts);
  to.put(rank, "expert_offsets", received.expert_offsets);
  to.put(rank, "row_source", received.row_source);
  to.put(rank, "row_token", received.row_token);
  to.put(rank, "layout_range", received.layout_range);
  to.put(rank, "recv_offset", received.recv_offset);
  to.put(rank, "recv_token", received.recv_token);
  to.put(rank, "source_tokens", received.source_tokens);
  to.put(rank, "row_of", received.row_of);
  to.put(rank, "recv_weights", received.recv_weights);
  to.put(rank, "status", received.status);
}

void run(const Case& from, Result& to) {
  const World world = world_of(from);
  const auto plans = plan(world);
  const auto received = dispatch(world, dispatch_options(from), mask_of(from, "mask", world.ranks));
  const auto combined = combine(world, received, by_rank<std::byte>(from, "outputs", world.ranks),
                                combine_options(from, world.ranks), mask_of(from, "combine_mask", world.ranks));
  for (int rank = 0; rank < world.ranks; ++rank) {
    put_plan(rank, plans[rank], to);
    put_received(rank, received[rank], to);
    to.put(rank, "combined", combined[rank].x);
    to.put(rank, "combined_weights", combined[rank].weights);
    to.put(rank, "combined_status", combined[rank].status);
  }
}

}  // namespace
}  // namespace heddle::spec

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: heddle_spec_dump CASE RESULT\n";
    return 2;
  }
  try {
    std::ifstream in(argv[1], std::ios::binary);
    heddle::spec::Result result(argv[2]);
    heddle::spec::run(heddle::spec::Case(in), result);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
