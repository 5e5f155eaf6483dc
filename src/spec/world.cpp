#include "spec/world.hpp"

#include "base/error.hpp"

namespace heddle::spec {
namespace {

void check_batch(const World& world, int rank) {
  const Batch& batch = world.batches[rank];
  const std::int64_t tokens = batch.tokens;
  check_size("rows", rank, batch.rows.size(), tokens * world.row_bytes);
  check_size("scales", rank, batch.scales.size(), tokens * world.scale_words);
  check_size("ids", rank, batch.ids.size(), tokens * world.topk);
  check_size("rank_map", rank, batch.rank_map.size(), world.topk == 0 ? tokens * world.ranks : 0);
  if (!batch.weights.empty()) check_size("weights", rank, batch.weights.size(), tokens * world.topk);
  for (std::size_t i = 0; i < batch.ids.size(); ++i) {
    HEDDLE_CHECK(batch.ids[i] >= -1 && batch.ids[i] < world.experts,
                 "spec: ids of rank {}, token {}, column {} is {}, legal: -1 to {}", rank, i / world.topk,
                 i % world.topk, batch.ids[i], world.experts - 1);
  }
}

}  // namespace

void check_size(const char* name, int rank, std::size_t seen, std::int64_t wanted) {
  HEDDLE_CHECK(static_cast<std::int64_t>(seen) == wanted, "spec: {} of rank {} has size {}, wanted {}", name, rank,
               seen, wanted);
}

void check(const World& world) {
  HEDDLE_CHECK(world.ranks >= 1, "spec: ranks is {}, legal: 1 and up", world.ranks);
  check_size("batches", 0, world.batches.size(), world.ranks);
  for (int rank = 0; rank < world.ranks; ++rank) check_batch(world, rank);
}

std::int32_t id_at(const World& world, const Batch& batch, int token, int k) {
  return batch.ids[std::int64_t{token} * world.topk + k];
}

bool is_first_column(const World& world, const Batch& batch, int token, int k) {
  const std::int32_t id = id_at(world, batch, token, k);
  for (int earlier = 0; earlier < k; ++earlier) {
    if (id_at(world, batch, token, earlier) == id) return false;
  }
  return id >= 0;
}

float summed_weight(const World& world, const std::vector<float>& weights, const Batch& batch, int token, int k) {
  if (weights.empty()) return 0.0f;
  const float* of_token = &weights[std::int64_t{token} * world.topk];
  float sum = of_token[k];
  for (int later = k + 1; later < world.topk; ++later) {
    if (id_at(world, batch, token, later) == id_at(world, batch, token, k)) sum += of_token[later];
  }
  return sum;
}

bool reaches(const World& world, const Batch& batch, int token, int rank) {
  if (world.topk == 0) return batch.rank_map[std::int64_t{token} * world.ranks + rank] != 0;
  for (int k = 0; k < world.topk; ++k) {
    if (owns(world, rank, id_at(world, batch, token, k))) return true;
  }
  return false;
}

}  // namespace heddle::spec
