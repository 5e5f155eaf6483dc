#pragma once

#include <heddle/error.hpp>
