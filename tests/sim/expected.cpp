#include "sim/expected.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace heddle::testing {
namespace {

bool has(const std::vector<int>& list, int value) { return std::find(list.begin(), list.end(), value) != list.end(); }

/// The value of each of some numbers that may be left out.
std::vector<float> subset_sums(float base, const std::vector<float>& optional) {
  std::vector<float> sums{base};
  for (const float part : optional) {
    const size_t before = sums.size();
    for (size_t i = 0; i < before; ++i) sums.push_back(sums[i] + part);
  }
  return sums;
}

}  // namespace

float Expected::value(int batch, int source, int token, int column) {
  return static_cast<float>(((batch * 5 + source) * 16 + token) * 8 + column + 1);
}

const RankBatch& Expected::batch(const Step& step, int source) const {
  return p_.batches[static_cast<size_t>(step.batch)][static_cast<size_t>(source)];
}

/// The source's rows here: of one local expert, or (-1) of all as one.
void Expected::add_rows_of(const Step& step, int source, int local, std::vector<Row>& rows) const {
  const RankBatch& from = batch(step, source);
  for (int token = 0; token < from.tokens; ++token) {
    bool hits = false;
    float weight = 0;
    for (int k = 0; k < p_.topk; ++k) {
      const int32_t id = from.ids[static_cast<size_t>(token * p_.topk + k)];
      if (id < 0 || topo_.owner_of(id) != rank_ || (local >= 0 && id != topo_.first_expert(rank_) + local)) continue;
      hits = true;
      if (local >= 0) weight += from.weights[static_cast<size_t>(token * p_.topk + k)];
    }
    if (hits) rows.push_back({source, token, weight});
  }
}

std::vector<Expected::Row> Expected::rows(const Step& step, const std::vector<int>& masked) const {
  std::vector<Row> rows;
  const int groups = step.layout == Layout::token_major ? 1 : topo_.num_local(rank_);
  for (int group = 0; group < groups; ++group) {
    for (int source = 0; source < p_.ranks; ++source) {
      if (!has(masked, source)) add_rows_of(step, source, step.layout == Layout::token_major ? -1 : group, rows);
    }
  }
  return rows;
}

std::string Expected::check(const Step& step, const Received& received) const {
  const std::vector<Row> wanted = rows(step, received.masked);
  const auto* sources = received.row_source.data<int32_t>();
  size_t seen = 0;
  for (int64_t i = 0; i < received.row_source.view.numel(); ++i) {
    if (sources[i] == -1) continue;
    const float weight = step.layout == Layout::token_major ? 0 : received.weights.data<float>()[i];
    const Row row{sources[i], received.row_token.data<int32_t>()[i], weight};
    if (seen >= wanted.size()) return fmt::format("row {} of source {} token {} is one too many", i, row.source, row.token);
    if (!(row == wanted[seen])) {
      return fmt::format("row {} is source {} token {} weight {}, not {} {} {}", i, row.source, row.token, weight,
                         wanted[seen].source, wanted[seen].token, wanted[seen].weight);
    }
    for (int column = 0; column < kHidden; ++column) {
      const float x = received.x.data<float>()[i * kHidden + column];
      if (x == value(step.batch, row.source, row.token, column)) continue;
      return fmt::format("row {} (source {}, token {}) holds {} in column {}, not {}", i, row.source, row.token, x, column,
                         value(step.batch, row.source, row.token, column));
    }
    ++seen;
  }
  if (seen < wanted.size()) return fmt::format("{} rows came, not {}", seen, wanted.size());
  return {};
}

/// What each rank's experts add to a token, as a multiple of the token.
std::vector<float> Expected::parts(const Step& step, int token) const {
  std::vector<float> parts(static_cast<size_t>(p_.ranks), 0);
  const RankBatch& mine = batch(step, rank_);
  for (int k = 0; k < p_.topk; ++k) {
    const auto at = static_cast<size_t>(token * p_.topk + k);
    if (mine.ids[at] < 0) continue;
    const auto first = mine.ids.begin() + token * p_.topk;
    const bool again = std::find(first, first + k, mine.ids[at]) != first + k;
    float& part = parts[static_cast<size_t>(topo_.owner_of(mine.ids[at]))];
    if (step.layout == Layout::token_major) part = 1;
    else if (step.sum == Sum::plain) part += again ? 0.0f : 1.0f;
    else part += mine.weights[at];
  }
  return parts;
}

std::string Expected::check(const Step& step, const Received& dispatched, const Combined& combined) const {
  for (int token = 0; token < batch(step, rank_).tokens; ++token) {
    const std::vector<float> owners = parts(step, token);
    float sure = 0;
    std::vector<float> perhaps;
    for (int owner = 0; owner < p_.ranks; ++owner) {
      const float part = owners[static_cast<size_t>(owner)];
      if (part == 0 || has(dispatched.masked, owner)) continue;
      if (has(combined.masked, owner)) perhaps.push_back(part);
      else sure += part;
    }
    const std::vector<float> legal = subset_sums(sure, perhaps);
    for (int column = 0; column < kHidden; ++column) {
      const float x = combined.x.data<float>()[token * kHidden + column];
      const float one = value(step.batch, rank_, token, column);
      if (std::any_of(legal.begin(), legal.end(), [&](float times) { return x == times * one; })) continue;
      return fmt::format("token {} column {} is {}, not {} times {}", token, column, x, sure, one);
    }
  }
  return {};
}

}  // namespace heddle::testing
