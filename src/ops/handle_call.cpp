#include "ops/handle_call.hpp"

#include <cstring>
#include <utility>

namespace heddle {
namespace {

void check_words(const TensorView& view, const char* name, std::initializer_list<int64_t> shape) {
  HEDDLE_CHECK(view.dtype == DType::i32 && view.shape == std::vector<int64_t>(shape) && view.is_contiguous(),
               "handle: {} is {}, legal: contiguous int32 [{}]", name, view.describe(), fmt::join(shape, ", "));
  HEDDLE_CHECK(view.device == Device{}, "handle: {} is not on the CPU, which this buffer is", name);
}

const int32_t* words_of(const TensorView& view) { return static_cast<const int32_t*>(view.data); }

/// A source's tokens must ascend and exist, or combine would write past its range of the source's window.
void check_tokens(const RouteTensors& tensors, int source) {
  const int32_t* offset = words_of(tensors.recv_offset);
  const int32_t* tokens = words_of(tensors.recv_token);
  const int32_t limit = words_of(tensors.source_tokens)[source];
  int32_t last = -1;
  for (int64_t i = offset[source]; i < offset[source + 1]; ++i) {
    HEDDLE_CHECK(tokens[i] > last && tokens[i] < limit, "handle: recv_token[{}] = {}, legal from rank {}: {} to {}", i,
                 tokens[i], source, last + 1, limit - 1);
    last = tokens[i];
  }
}

void check_ids(const RouteTensors& tensors, int64_t local) {
  const int32_t* ids = words_of(tensors.recv_ids);
  for (int64_t i = 0; i < tensors.recv_ids.numel(); ++i) {
    HEDDLE_CHECK(ids[i] >= -1 && ids[i] < local, "handle: recv_ids has {}, legal: -1 to {}", ids[i], local - 1);
  }
}

void check_offsets(const RouteTensors& tensors, int world) {
  const int32_t* offset = words_of(tensors.recv_offset);
  HEDDLE_CHECK(offset[0] == 0, "handle: recv_offset[0] = {}, legal: 0", offset[0]);
  for (int source = 0; source < world; ++source) {
    HEDDLE_CHECK(offset[source + 1] >= offset[source], "handle: recv_offset[{}] = {}, legal: {} or more", source + 1,
                 offset[source + 1], offset[source]);
  }
}

int32_t* copied(Arena& arena, const TensorView& view) {
  auto* to = arena.take<int32_t>(view.numel());
  if (view.numel() > 0) std::memcpy(to, view.data, static_cast<size_t>(view.numel()) * sizeof(int32_t));
  return to;
}

}  // namespace

std::shared_ptr<const Route> make_route(Calls& calls, std::shared_ptr<const PlanData> plan, const RouteTensors& tensors) {
  HEDDLE_CHECK(plan != nullptr && plan->buffer == calls.id(),
               "handle: plan is not of this buffer; legal: a plan made by this buffer");
  const Topology& topo = calls.topology();
  const int64_t topk = plan->view.topk;
  check_words(tensors.recv_offset, "recv_offset", {topo.world + 1});
  check_words(tensors.source_tokens, "source_tokens", {topo.world});
  check_offsets(tensors, topo.world);
  const int64_t received = words_of(tensors.recv_offset)[topo.world];
  check_words(tensors.recv_token, "recv_token", {received});
  check_words(tensors.recv_ids, "recv_ids", {received, topk});
  for (int source = 0; source < topo.world; ++source) check_tokens(tensors, source);
  check_ids(tensors, topo.num_local(topo.rank));

  auto route = std::make_shared<Route>(calls.backend());
  Arena& arena = route->arena;
  route->plan = std::move(plan);
  route->rows = received;
  route->buffer = calls.id();
  route->incarnation = calls.context().ledger->incarnation;
  route->view = {.capacity = received, .recv_offset = copied(arena, tensors.recv_offset),
                 .recv_token = copied(arena, tensors.recv_token),
                 .source_tokens = copied(arena, tensors.source_tokens), .recv_ids = copied(arena, tensors.recv_ids),
                 .recv_weights = arena.take<float>(received * topk), .status = arena.take<uint8_t>(topo.world)};
  return route;
}

}  // namespace heddle
