#include "support/step_shapes.hpp"

#include "device/quantise_args.hpp"
#include "protocol/call.hpp"
#include "protocol/combine_args.hpp"

namespace heddle::testing {

Shape dispatch_shape(const spec::World& world, const DispatchCase& wanted) {
  const bool quantises = wanted.quantise != Quantise::none;
  Shape shape;
  shape.kind = Kind::dispatch;
  shape.layout = wanted.layout;
  shape.quantise = wanted.quantise;
  shape.dtype = wanted.dtype;
  shape.wire = wire_dtype(wanted.dtype, wanted.quantise);
  shape.split = wanted.split;
  shape.payload_bytes = static_cast<int32_t>(row_bytes(world.hidden, wanted.dtype, wanted.quantise));
  shape.scale_words =
      static_cast<int32_t>(quantises ? num_scale_words(world.hidden, wanted.quantise) : world.scale_words);
  shape.topk = world.topk;
  shape.experts = world.experts;
  shape.alignment = wanted.alignment;
  shape.max_tokens = wanted.max_tokens;
  return shape;
}

Shape combine_shape(const spec::World& world, const DispatchCase& dispatched, const CombineCase& wanted) {
  Shape shape = dispatch_shape(world, dispatched);
  shape.kind = Kind::combine;
  shape.quantise = Quantise::none;
  shape.weights = wanted.weights;
  shape.dtype = DType::bf16;
  set_wire(shape, wanted.wire, world.hidden, DType::bf16);
  shape.split = wanted.split;
  shape.row_weights = wanted.row_weights;
  shape.scale_words = 0;
  return shape;
}

size_t window_for(const spec::World& world, const DispatchCase& wanted, int64_t slots) {
  const Shape shape = dispatch_shape(world, wanted);
  const int64_t table = table_bytes(shape, world.ranks);
  const int64_t head = Range::of(int64_t{1} << 40, table, 0).slots;
  return static_cast<size_t>(window_bytes_for(world.ranks, head + slots * Slot::of(shape).stride));
}

}  // namespace heddle::testing
