#pragma once

#include <heddle/topology.hpp>
