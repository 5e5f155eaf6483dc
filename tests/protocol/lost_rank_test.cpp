// I10: whatever of a lost rank had come, its part is whole or absent.
#include "support/lost_rank.hpp"

#include <gmock/gmock.h>

namespace heddle::testing {
namespace {

uint8_t status_of_lost(const Tables& tables, const char* table) { return tables.at(table)[2]; }

TEST(LostRank, IsMaskedInDispatchAndCombine) {
  for (const Arrives arrives : {Arrives::nothing, Arrives::headers, Arrives::dispatch, Arrives::all}) {
    const Trace reader = play_with_lost_rank(make_cpu_machine, arrives, {}, false)[0];
    EXPECT_EQ(status_of_lost(reader[1], "status"), arrives < Arrives::dispatch ? 1 : 0);
    EXPECT_EQ(status_of_lost(reader[2], "combined.status"), arrives < Arrives::all ? 1 : 0);
    EXPECT_EQ(reader.size(), arrives == Arrives::all ? 3u : 5u);
  }
}

}  // namespace
}  // namespace heddle::testing
