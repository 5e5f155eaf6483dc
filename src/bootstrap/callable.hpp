#pragma once

#include <heddle/ranks.hpp>
