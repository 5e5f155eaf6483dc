// What a graph that is being captured must keep alive.
#pragma once

#include <memory>

struct CUstream_st;

namespace heddle {

/// Keeps `kept` until the graph that the stream is captured into, and all that is instantiated from it, are gone. Throws
/// Error{system}.
void keep_in_graph(CUstream_st* captured, std::shared_ptr<const void> kept);

/// Drops what graphs have let go of. The driver tells of that in a thread in which nothing of CUDA may be called, so it is
/// kept until now.
void drop_what_graphs_left();

}  // namespace heddle
