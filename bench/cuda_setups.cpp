#include "cuda_setups.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.hpp"

namespace heddle::bench {
namespace {

using testing::CombineCase;
using testing::DispatchCase;
using testing::Routing;

using Setups = std::vector<Setup>;

/// The six operations, each in the same circumstances.
Setups each_operation(const Setup& like) {
  Setups all;
  for (const Operation& operation : operations(like.batches.tokens)) {
    Setup setup = like;
    setup.operation = operation;
    setup.name = operation.name + (like.name.empty() ? "" : ", " + like.name);
    all.push_back(setup);
  }
  return all;
}

void append(Setups& all, const Setups& more) { all.insert(all.end(), more.begin(), more.end()); }

Setups by_sms(const Setup& like, int) {
  Setup setup = like;
  setup.sms = {4, 8, 12, 16, 24, 32, 64, 0};
  return each_operation(setup);
}

Setups by_tokens(const Setup& like, int most) {
  Setups all;
  for (int tokens = 128; tokens <= most; tokens *= 2) {
    Setup setup = like;
    setup.batches.tokens = tokens;
    append(all, each_operation(setup));
  }
  return all;
}

Setups by_routing(const Setup& like, int) {
  Setups all;
  for (const Routing routing : {Routing::uniform, Routing::zipf, Routing::one_expert}) {
    Setup setup = like;
    setup.batches.routing = routing;
    setup.name = routing == Routing::one_expert ? "one-hot" : name_of(routing);
    append(all, each_operation(setup));
  }
  return all;
}

/// A layer's outputs are held until its backward pass, so none is in a cache or a page table that was used just before.
/// Expert-major BF16 outputs of 60 calls would not fit beside another rank's.
Setups held(const Setup& like, int) {
  Setups all;
  for (const int outputs : {1, 60}) {
    Setup setup = like;
    setup.outputs = outputs;
    setup.name = fmt::format("{} outputs", outputs);
    for (const Setup& one : each_operation(setup)) {
      const bool is_large =
          one.operation.dispatch.layout == Layout::expert_major && one.operation.dispatch.dtype == DType::bf16;
      if (!one.operation.is_combine && !is_large) all.push_back(one);
    }
  }
  return all;
}

Setups by_place(const Setup& like, int) {
  Setups all;
  for (const bool in_place : {false, true}) {
    Setup setup = like;
    setup.in_place = in_place;
    setup.name = in_place ? "in place" : "staged";
    for (const Setup& one : each_operation(setup)) {
      if (!one.operation.is_combine) all.push_back(one);
    }
  }
  return all;
}

Setups by_pinned_memory(const Setup& like, int) {
  Setup setup = like;
  setup.path = CudaPath::pinned;
  setup.name = "pinned host memory";
  Setups all = each_operation(setup);
  const std::pair<const char*, ResultWire> wires[] = {{"fp8 wire", ResultWire::fp8}, {"logfmt10 wire", ResultWire::logfmt10}};
  for (const auto& [name, wire] : wires) {
    setup.combine.wire = wire;
    setup.name = fmt::format("pinned host memory, {}", name);
    for (const Setup& one : each_operation(setup)) {
      if (one.operation.is_combine) all.push_back(one);
    }
  }
  return all;
}

Setups plan_alone(const Setup& like, int most) {
  Setups all;
  for (int tokens = 128; tokens <= most; tokens *= 2) {
    Setup setup = like;
    setup.batches.tokens = tokens;
    setup.operation = operations(tokens)[0];
    setup.name = "plan";
    setup.plan_only = true;
    setup.sms = {24, 0};
    all.push_back(setup);
  }
  return all;
}

Setups by_options(const Setup& like, int) {
  Setups all;
  const int tokens = like.batches.tokens;
  const DispatchCase token_major{.max_tokens = tokens, .fixed_size = true};
  const DispatchCase expert_major{.layout = Layout::expert_major, .max_tokens = tokens, .fixed_size = true};
  const auto add = [&](const std::string& plain, const std::string& option, const DispatchCase& dispatch,
                       const CombineCase* combine = nullptr) {
    Setup setup = like;
    setup.name = option.empty() ? plain : plain + ", " + option;
    setup.plain = plain;
    setup.operation = {.name = setup.name, .dispatch = dispatch, .is_combine = combine != nullptr};
    if (combine != nullptr) setup.combine = *combine;
    all.push_back(setup);
  };
  const std::pair<const char*, DispatchCase> layouts[] = {{"token-major", token_major}, {"expert-major", expert_major}};
  const std::pair<const char*, Quantise> casts[] = {{"to fp8", Quantise::fp8},
                                                    {"to fp8, powers of two", Quantise::fp8_pow2},
                                                    {"to fp8, ue8m0", Quantise::fp8_ue8m0},
                                                    {"to fp8, one scale", Quantise::fp8_row},
                                                    {"to mxfp8", Quantise::mxfp8},
                                                    {"to nvfp4", Quantise::nvfp4}};
  for (const auto& [name, layout] : layouts) {
    const std::string dispatch = fmt::format("bf16 dispatch {}", name);
    const auto changed = [&, layout = layout](const char* option, const auto& change) {
      DispatchCase wanted = layout;
      change(wanted);
      add(dispatch, option, wanted);
    };
    changed("", [](DispatchCase&) {});
    for (const auto& [option, cast] : casts) changed(option, [cast = cast](DispatchCase& one) { one.quantise = cast; });
    changed("cleared padding", [](DispatchCase& one) { one.zero_padding = true; });
    changed("capacity of half", [&](DispatchCase& one) { one.capacity = int64_t{tokens}; });
    if (layout.layout == Layout::expert_major) changed("alignment 128", [](DispatchCase& one) { one.alignment = 128; });
    const std::string combine = fmt::format("bf16 combine {}", name);
    const auto combined = [&, layout = layout](const char* option, const CombineCase& wanted) {
      add(combine, option, layout, &wanted);
    };
    combined("", {});
    combined("one bias", {.biases = 1});
    combined("two biases", {.biases = 2});
    combined("fp32 wire", {.wire = ResultWire::float32});
    combined("fp8 wire", {.wire = ResultWire::fp8});
    combined("logfmt10 wire", {.wire = ResultWire::logfmt10});
    combined("row weights", {.row_weights = true});
    if (layout.layout != Layout::expert_major) continue;
    combined("weighted", {.weights = Weights::at_owner});
    combined("weights given late", {.weights = Weights::late});
    combined("weighted at the source", {.weights = Weights::at_source});
  }
  return all;
}

struct Section {
  const char* name;
  Setups (*setups)(const Setup& like, int most_tokens);
};

constexpr Section kSections[] = {{"sms", by_sms},      {"tokens", by_tokens},  {"routing", by_routing},
                                 {"held", held},       {"place", by_place},    {"pinned", by_pinned_memory},
                                 {"plan", plan_alone}, {"options", by_options}};

}  // namespace

const std::vector<std::string>& sections() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Section& section : kSections) all.emplace_back(section.name);
    return all;
  }();
  return names;
}

std::vector<Setup> setups_of(const std::string& name, const Batches& batches, int most_tokens) {
  for (const Section& section : kSections) {
    if (section.name != name) continue;
    return section.setups({.section = name, .name = "", .batches = batches, .operation = {}}, most_tokens);
  }
  fail(ErrorCode::usage, "no section {}; there are {}", name, fmt::join(sections(), ", "));
}

}  // namespace heddle::bench
