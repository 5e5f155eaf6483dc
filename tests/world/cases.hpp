// A covering set of cases: every routing, rank count, payload and form of sum meets every layout; a seed draws the rest.
#pragma once

#include <cstdint>
#include <vector>

#include "world/case.hpp"

namespace heddle::testing {

enum class Group { routings, ranks, payloads, sums, rounds, sizes, in_place };

inline constexpr Group kGroups[] = {Group::routings, Group::ranks, Group::payloads, Group::sums,
                                    Group::rounds,   Group::sizes, Group::in_place};

const char* name_of(Group);

std::vector<Case> cases_of(Group, uint64_t seed);

/// Anything legal.
Case any_case(uint64_t seed);

}  // namespace heddle::testing
