#pragma once

#include <heddle/bootstrap.hpp>
