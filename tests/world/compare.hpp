// Byte for byte: what a buffer gave against what the spec says.
#pragma once

#include "world/case.hpp"

namespace heddle::testing {

void expect_plan(const Plan&, const spec::Plan&);
void expect_received(const Received&, const spec::Received&, const Case&, const Meaning&, int rank);
void expect_combined(const Combined&, const spec::Combined&);

}  // namespace heddle::testing
