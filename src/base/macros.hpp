#pragma once

#include <heddle/macros.hpp>

/// Before a loop that stays as short as it is: its code would crowd out the rest of a kernel.
#if HEDDLE_ON_DEVICE
#define HEDDLE_ROLLED _Pragma("unroll 1")
#else
#define HEDDLE_ROLLED
#endif
