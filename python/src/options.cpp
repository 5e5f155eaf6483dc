// The choices of a call but for where it runs, with the words that Python uses for C++'s enumerations.
#include <heddle/buffer.hpp>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <utility>

#include "bindings.hpp"

namespace heddle::python {
namespace {

template <class Value, size_t N>
using Words = std::array<std::pair<std::string_view, Value>, N>;

constexpr Words<Layout, 3> kLayouts{{
    {"token_major", Layout::token_major},
    {"expert_major", Layout::expert_major},
    {"slab", Layout::slab},
}};

constexpr Words<Quantise, 7> kQuantise{{
    {"none", Quantise::none},
    {"fp8", Quantise::fp8},
    {"fp8_pow2", Quantise::fp8_pow2},
    {"fp8_ue8m0", Quantise::fp8_ue8m0},
    {"fp8_row", Quantise::fp8_row},
    {"mxfp8", Quantise::mxfp8},
    {"nvfp4", Quantise::nvfp4},
}};

constexpr Words<ScaleLayout, 2> kScaleLayouts{{
    {"usual", ScaleLayout::usual},
    {"tiles", ScaleLayout::tiles},
}};

constexpr Words<ResultWire, 4> kResultWires{{
    {"usual", ResultWire::usual},
    {"float32", ResultWire::float32},
    {"fp8", ResultWire::fp8},
    {"logfmt10", ResultWire::logfmt10},
}};

template <class Value, size_t N>
Value find(const char* argument, std::string_view word, const Words<Value, N>& words) {
  std::string legal;
  for (const auto& [known, value] : words) {
    if (known == word) return value;
    legal += fmt::format("{}'{}'", legal.empty() ? "" : ", ", known);
  }
  fail(ErrorCode::usage, "{} is '{}', legal: {}", argument, word, legal);
}

void make_dispatch(DispatchOptions* options, const std::string& layout, int alignment, const std::string& quantise,
                   const std::string& scale_layout, bool fixed_size, int64_t capacity, int max_tokens,
                   bool zero_padding, bool drop_overflow, bool wide_ids) {
  new (options) DispatchOptions{.layout = find("layout", layout, kLayouts),
                                .alignment = alignment,
                                .quantise = find("quantise", quantise, kQuantise),
                                .scale_layout = find("scale_layout", scale_layout, kScaleLayouts),
                                .fixed_size = fixed_size,
                                .capacity = capacity,
                                .max_tokens = max_tokens,
                                .zero_padding = zero_padding,
                                .drop_overflow = drop_overflow,
                                .wide_ids = wide_ids};
}

void make_combine(CombineOptions* options, bool weighted, const std::string& wire, const std::optional<std::string>& out_dtype) {
  new (options) CombineOptions{.weighted = weighted, .wire = find("wire", wire, kResultWires)};
  if (out_dtype) options->out_dtype = parse_dtype(*out_dtype);
}

}  // namespace

void bind_options(nb::module_& m) {
  nb::class_<DispatchOptions>(m, "DispatchOptions")
      .def("__init__", &make_dispatch, nb::kw_only(), nb::arg("layout"), nb::arg("alignment"), nb::arg("quantise"),
           nb::arg("scale_layout"), nb::arg("fixed_size"), nb::arg("capacity"), nb::arg("max_tokens"),
           nb::arg("zero_padding"), nb::arg("drop_overflow"), nb::arg("wide_ids"));
  nb::class_<CombineOptions>(m, "CombineOptions")
      .def("__init__", &make_combine, nb::kw_only(), nb::arg("weighted"), nb::arg("wire"), nb::arg("out_dtype").none());
}

}  // namespace heddle::python
