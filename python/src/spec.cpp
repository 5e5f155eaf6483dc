// heddle._core.spec: what plan, dispatch and combine mean, for a whole world at once. Slow; for tests and `heddle bench --verify`.
// Arrays are flat and row-major; src/spec says what is in them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <heddle/buffer.hpp>

#include "bindings.hpp"
#include "spec/combine.hpp"
#include "spec/dispatch.hpp"
#include "spec/plan.hpp"
#include "spec/quantise.hpp"
#include "vectors.hpp"

namespace heddle::python {
namespace {

void make_batch(spec::Batch* batch, int tokens, nb::handle rows, nb::handle scales, nb::handle ids, nb::handle rank_map,
                nb::handle weights) {
  new (batch) spec::Batch{.tokens = tokens,
                          .rows = vector_of<std::byte>(rows, "rows"),
                          .scales = vector_of<uint32_t>(scales, "scales"),
                          .ids = vector_of<int32_t>(ids, "ids"),
                          .rank_map = vector_of<uint8_t>(rank_map, "rank_map"),
                          .weights = vector_of<float>(weights, "weights")};
}

void make_world(spec::World* world, int experts, int topk, int hidden, int row_bytes, int scale_words,
                std::vector<spec::Batch> batches) {
  const int ranks = static_cast<int>(batches.size());
  new (world) spec::World{.ranks = ranks,
                          .experts = experts,
                          .topk = topk,
                          .hidden = hidden,
                          .row_bytes = row_bytes,
                          .scale_words = scale_words,
                          .batches = std::move(batches)};
}

std::vector<spec::Received> dispatch(const spec::World& world, const DispatchOptions& options, const spec::Mask& mask,
                                     float global_scale) {
  spec::DispatchOptions same{.layout = options.layout,
                             .alignment = options.alignment,
                             .max_tokens = options.max_tokens,
                             .fixed_size = options.fixed_size,
                             .global_scale = global_scale,
                             .zero_padding = options.zero_padding,
                             .quantise = static_cast<spec::Quantise>(options.quantise)};
  if (options.capacity >= 0) same.capacity = options.capacity;
  return spec::dispatch(world, same, mask);
}

template <class T>
std::vector<std::vector<T>> vectors_of(const std::vector<nb::object>& objects, const char* argument) {
  std::vector<std::vector<T>> all;
  for (const nb::object& object : objects) all.push_back(vector_of<T>(object, argument));
  return all;
}

struct CombineMode {
  std::string in_dtype, wire_dtype, out_dtype;
  bool weighted = false;
  bool unreduced = false;
  spec::Pack pack = spec::Pack::none;
};

spec::Pack pack_of(std::string_view wire) {
  if (wire == "fp8") return spec::Pack::fp8;
  if (wire == "logfmt10") return spec::Pack::logfmt10;
  if (wire == "usual") return spec::Pack::none;
  fail(ErrorCode::usage, "pack is '{}', legal: 'usual', 'fp8', 'logfmt10'", wire);
}

void make_mode(CombineMode* mode, const std::string& in_dtype, const std::string& wire_dtype,
               const std::string& out_dtype, bool weighted, bool unreduced, const std::string& pack) {
  new (mode) CombineMode{in_dtype, wire_dtype, out_dtype, weighted, unreduced, pack_of(pack)};
}

/// Lists have an array for each rank, or are empty; biases a list of 0 to 2 arrays for each.
std::vector<spec::Combined> combine(const spec::World& world, const std::vector<spec::Received>& received,
                                    const std::vector<nb::object>& outputs, const CombineMode& mode,
                                    const std::vector<nb::object>& weights, const std::vector<nb::object>& row_weights,
                                    const std::vector<std::vector<nb::object>>& biases) {
  spec::CombineOptions options{.in_dtype = parse_dtype(mode.in_dtype),
                               .wire_dtype = parse_dtype(mode.wire_dtype),
                               .pack = mode.pack,
                               .out_dtype = parse_dtype(mode.out_dtype),
                               .weighted = mode.weighted,
                               .unreduced = mode.unreduced,
                               .weights = vectors_of<float>(weights, "weights"),
                               .row_weights = vectors_of<float>(row_weights, "row_weights")};
  for (const auto& of_rank : biases) options.biases.push_back(vectors_of<std::byte>(of_rank, "biases"));
  return spec::combine(world, received, vectors_of<std::byte>(outputs, "outputs"), options);
}

/// As the dispatch's options say it.
nb::tuple quantise_row(const DispatchOptions& options, nb::handle row, float global_scale) {
  const auto form = static_cast<spec::Quantise>(options.quantise);
  spec::QuantisedRow result = spec::quantise_row(form, vector_of<std::byte>(row, "row"), global_scale);
  return nb::make_tuple(array_from(std::move(result.values)), array_from(std::move(result.scales)));
}

template <class Class, class Field>
auto array(Field Class::* member) {
  return [member](const Class& of) { return array_from(of.*member); };
}

nb::object status(const std::vector<spec::Status>& of_ranks) {
  std::vector<uint8_t> bytes;
  for (const spec::Status one : of_ranks) bytes.push_back(static_cast<uint8_t>(one));
  return array_from(std::move(bytes));
}

void bind_received(nb::module_& m) {
  using spec::Received;
  nb::class_<Received>(m, "Received")
      .def_ro("rows", &Received::rows)
      .def_ro("num_dropped", &Received::num_dropped)
      .def_prop_ro("x", array(&Received::x))
      .def_prop_ro("scales", array(&Received::scales))
      .def_prop_ro("ids", array(&Received::ids))
      .def_prop_ro("weights", array(&Received::weights))
      .def_prop_ro("row_weights", array(&Received::row_weights))
      .def_prop_ro("counts", array(&Received::counts))
      .def_prop_ro("expert_offsets", array(&Received::expert_offsets))
      .def_prop_ro("row_source", array(&Received::row_source))
      .def_prop_ro("row_token", array(&Received::row_token))
      .def_prop_ro("layout_range", array(&Received::layout_range))
      .def_prop_ro("recv_offset", array(&Received::recv_offset))
      .def_prop_ro("recv_token", array(&Received::recv_token))
      .def_prop_ro("status", [](const Received& received) { return status(received.status); });
}

}  // namespace

void bind_spec(nb::module_& core) {
  nb::module_ m = core.def_submodule("spec", "What plan, dispatch and combine mean for all ranks at once.");
  nb::class_<spec::Batch>(m, "Batch")
      .def("__init__", &make_batch, nb::kw_only(), nb::arg("tokens"), nb::arg("rows").none(), nb::arg("scales").none(),
           nb::arg("ids").none(), nb::arg("rank_map").none(), nb::arg("weights").none());
  nb::class_<spec::World>(m, "World")
      .def("__init__", &make_world, nb::kw_only(), nb::arg("experts"), nb::arg("topk"), nb::arg("hidden"),
           nb::arg("row_bytes"), nb::arg("scale_words"), nb::arg("batches"));
  bind_received(m);
  nb::class_<CombineMode>(m, "CombineMode")
      .def("__init__", &make_mode, nb::kw_only(), nb::arg("in_dtype"), nb::arg("wire_dtype"), nb::arg("out_dtype"),
           nb::arg("weighted") = false, nb::arg("unreduced") = false, nb::arg("pack") = "usual");
  nb::class_<spec::Combined>(m, "Combined")
      .def_prop_ro("x", array(&spec::Combined::x))
      .def_prop_ro("weights", array(&spec::Combined::weights))
      .def_prop_ro("status", [](const spec::Combined& combined) { return status(combined.status); });
  m.def("dispatch", &dispatch, nb::arg("world"), nb::arg("options"), nb::arg("mask") = spec::Mask{},
        nb::arg("global_scale") = 1.0f);
  m.def("combine", &combine, nb::arg("world"), nb::arg("received"), nb::arg("outputs"), nb::arg("mode"),
        nb::arg("weights") = std::vector<nb::object>{}, nb::arg("row_weights") = std::vector<nb::object>{},
        nb::arg("biases") = std::vector<std::vector<nb::object>>{});
  m.def("quantise_row", &quantise_row, nb::arg("options"), nb::arg("row"), nb::arg("global_scale") = 1.0f);
}

}  // namespace heddle::python
