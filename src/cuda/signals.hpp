// The kernel that waits for a caller's signals (protocol/signals.hpp), on one multiprocessor.
#pragma once

namespace heddle {

inline constexpr int kSignalThreads = 256;

const void* await_signals_kernel();  // DirectPort, Context, SignalView, uint64_t* faulted

}  // namespace heddle
