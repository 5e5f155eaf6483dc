// The kernels that take a caller's ids or rank map (protocol/ids.hpp).
#pragma once

namespace heddle {

inline constexpr int kIdThreads = 256;

const void* take_ids_kernel();  // TableView, int experts, int32_t* to, uint64_t* bad
const void* take_map_kernel();  // TableView, uint8_t* to

}  // namespace heddle
