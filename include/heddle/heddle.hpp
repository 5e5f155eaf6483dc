// Heddle: expert-parallel dispatch and combine. This header is all a user includes.
#pragma once

#include <heddle/bootstrap.hpp>
#include <heddle/buffer.hpp>
#include <heddle/config.hpp>
#include <heddle/device.hpp>
#include <heddle/dtype.hpp>
#include <heddle/error.hpp>
#include <heddle/layout.hpp>
#include <heddle/metrics.hpp>
#include <heddle/placement.hpp>
#include <heddle/ranks.hpp>
#include <heddle/tensor.hpp>
#include <heddle/topology.hpp>
