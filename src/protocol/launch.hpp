// Where the steps of a GPU run, and whether the host waits for them.
#pragma once

struct CUstream_st;

namespace heddle {

/// Which coop runs the steps. One warp or one block are for tests of the protocol; the grid is for use.
enum class Workers { warp, block, grid };

struct Launch {
  CUstream_st* stream = nullptr;  // null: the backend's own
  int num_sms = 0;                // 0: all
  Workers workers = Workers::grid;
  bool wait = true;  // each step returns when it has ended; else at once, and true
};

}  // namespace heddle
