// What a rank of the simulation must get, from the program alone: whole numbers that name batch, source, token and column.
#pragma once

#include <string>
#include <vector>

#include <heddle/buffer.hpp>

#include "sim/program.hpp"

namespace heddle::testing {

class Expected {
 public:
  Expected(const Program& program, int rank)
      : p_(program), rank_(rank), topo_{.rank = rank, .world = program.ranks, .experts = program.experts} {}

  static float value(int batch, int source, int token, int column);

  /// What is wrong with it; empty: nothing. Rows of sources in `received.masked` must be absent, all others must be there.
  std::string check(const Step&, const Received& received) const;
  /// Owners that the dispatch had masked are absent. Those that are masked only now may have come in part.
  std::string check(const Step&, const Received& dispatched, const Combined&) const;

 private:
  struct Row {
    int source;
    int token;
    float weight;
    bool operator==(const Row&) const = default;
  };
  const RankBatch& batch(const Step& step, int source) const;
  std::vector<Row> rows(const Step&, const std::vector<int>& masked) const;
  void add_rows_of(const Step&, int source, int local, std::vector<Row>&) const;
  std::vector<float> parts(const Step&, int token) const;

  const Program& p_;
  int rank_;
  Topology topo_;
};

}  // namespace heddle::testing
