#include "ops/handle_call.hpp"

#include <utility>
#include <vector>

namespace heddle {
namespace {

void check_words(Calls& calls, const TensorView& view, const char* name, std::initializer_list<int64_t> shape) {
  HEDDLE_CHECK(view.dtype == DType::i32 && view.shape == std::vector<int64_t>(shape) && view.is_contiguous(),
               "handle: {} is {}, legal: contiguous int32 [{}]", name, view.describe(), fmt::join(shape, ", "));
  calls.check_device("handle", name, view);
}

using Words = std::vector<int32_t>;

Words words_of(Calls& calls, const TensorView& view) {
  Words words(static_cast<size_t>(view.numel()));
  calls.backend().read(words.data(), view.data, words.size() * sizeof(int32_t));
  return words;
}

void check_offsets(const Words& offset) {
  HEDDLE_CHECK(offset[0] == 0, "handle: recv_offset[0] = {}, legal: 0", offset[0]);
  for (size_t source = 1; source < offset.size(); ++source) {
    HEDDLE_CHECK(offset[source] >= offset[source - 1], "handle: recv_offset[{}] = {}, legal: {} or more", source,
                 offset[source], offset[source - 1]);
  }
}

/// A source's tokens must ascend and exist, or combine would write past its range of the source's window.
void check_tokens(const Words& offset, const Words& tokens, size_t source, int32_t limit) {
  int32_t last = -1;
  for (auto i = static_cast<size_t>(offset[source]); i < static_cast<size_t>(offset[source + 1]); ++i) {
    HEDDLE_CHECK(tokens[i] > last && tokens[i] < limit, "handle: recv_token[{}] = {}, legal from rank {}: {} to {}", i,
                 tokens[i], source, last + 1, limit - 1);
    last = tokens[i];
  }
}

void check_ids(const Words& ids, int64_t local) {
  for (const int32_t id : ids) {
    HEDDLE_CHECK(id >= -1 && id < local, "handle: recv_ids has {}, legal: -1 to {}", id, local - 1);
  }
}

int32_t* copied(Calls& calls, Arena& arena, const Words& words) {
  auto* to = arena.take<int32_t>(static_cast<int64_t>(words.size()));
  calls.backend().write(to, words.data(), words.size() * sizeof(int32_t));
  return to;
}

uint8_t* all_arrived(Calls& calls, Arena& arena, int world) {
  const std::vector<uint8_t> status(static_cast<size_t>(world));
  auto* to = arena.take<uint8_t>(world);
  calls.backend().write(to, status.data(), status.size());
  return to;
}

}  // namespace

std::shared_ptr<const Route> make_route(Calls& calls, std::shared_ptr<const PlanData> plan, const RouteTensors& tensors) {
  HEDDLE_CHECK(plan != nullptr && plan->buffer == calls.id(),
               "handle: plan is not of this buffer; legal: a plan made by this buffer");
  const Topology& topo = calls.topology();
  const int64_t topk = plan->view.topk;
  check_words(calls, tensors.recv_offset, "recv_offset", {topo.world + 1});
  check_words(calls, tensors.source_tokens, "source_tokens", {topo.world});
  const Words offset = words_of(calls, tensors.recv_offset);
  check_offsets(offset);
  const int64_t received = offset.back();
  check_words(calls, tensors.recv_token, "recv_token", {received});
  check_words(calls, tensors.recv_ids, "recv_ids", {received, topk});
  const Words tokens = words_of(calls, tensors.recv_token), of_source = words_of(calls, tensors.source_tokens);
  const Words ids = words_of(calls, tensors.recv_ids);
  for (size_t source = 0; source < of_source.size(); ++source) check_tokens(offset, tokens, source, of_source[source]);
  check_ids(ids, topo.num_local(topo.rank));

  auto route = std::make_shared<Route>(calls.backend());
  Arena& arena = route->arena;
  route->plan = std::move(plan);
  route->rows = route->num_received = received;
  route->buffer = calls.id();
  route->incarnation = calls.incarnation();
  route->view = {.capacity = received, .recv_offset = copied(calls, arena, offset),
                 .recv_token = copied(calls, arena, tokens), .source_tokens = copied(calls, arena, of_source),
                 .recv_ids = copied(calls, arena, ids), .recv_weights = arena.take<float>(received * topk),
                 .status = all_arrived(calls, arena, topo.world)};
  return route;
}

}  // namespace heddle
