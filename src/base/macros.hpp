#pragma once

#include <heddle/macros.hpp>
