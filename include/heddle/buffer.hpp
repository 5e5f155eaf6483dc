// Sends tokens to the ranks that own their experts and brings the results back.
//
//   Buffer buffer(bootstrap, {.experts = 256, .max_tokens = 4096});
//   Plan plan = buffer.plan(ids);
//   Received received = buffer.dispatch(plan, {.x = x});
//   Combined combined = buffer.combine(received.handle, {.x = experts(received.x)});
//
// T tokens of this rank, K columns (top-k), H hidden, E experts, R ranks, L experts of this rank, n tokens received.
#pragma once

#include <heddle/bootstrap.hpp>
#include <heddle/config.hpp>
#include <heddle/error.hpp>
#include <heddle/layout.hpp>
#include <heddle/metrics.hpp>
#include <heddle/placement.hpp>
#include <heddle/tensor.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

/// The route of one batch. Immutable, cheap to copy, usable for any number of dispatches; no peer knows of it.
class Plan {
 public:
  Plan() = default;
  bool is_set() const { return data_ != nullptr; }
  int tokens() const;
  int topk() const;
  TensorView ids() const;                   // [T, K] int32; topk 0: none
  TensorView is_token_in_rank() const;      // [T, R] uint8
  TensorView num_tokens_per_rank() const;   // [R] int32
  TensorView num_tokens_per_expert() const; // [E] int32 (token, column) pairs: a token that names an expert twice counts 2
  TensorView num_rows_per_expert() const;   // [E] int32 distinct tokens

 private:
  friend struct PlanAccess;
  std::shared_ptr<const struct PlanData> data_;
};

/// What a combine needs to know of the dispatch whose results it brings back. Immutable, cheap to copy; any number may be
/// alive. It does not survive a reset().
struct Handle {
  std::shared_ptr<const struct Route> route;

  bool is_set() const { return route != nullptr; }
  Plan plan() const;
  TensorView recv_offset() const;    // [R + 1] int32, prefix of received tokens by source
  TensorView recv_token() const;     // [n] int32, token index in its source
  TensorView source_tokens() const;  // [R] int32, T of each source
  TensorView row_of() const;         // [n, K] int32; expert-major and slab; -1 none, -2 dropped
  TensorView recv_ids() const;       // [n, K] int32 local ids, -1 = not local
  TensorView recv_weights() const;   // [n, K] float32
  TensorView status() const;         // [R] uint8: 0 arrived, 1 masked
  int num_received() const;          // n; where the host did not wait, the most that can be: recv_offset has n
};

/// What of a token-major dispatch a combine needs, as copies that a caller kept of a Handle's tensors.
struct RouteTensors {
  TensorView recv_offset;    // [R + 1] int32
  TensorView recv_token;     // [n] int32, ascending within a source
  TensorView source_tokens;  // [R] int32
  TensorView recv_ids;       // [n, K] int32; K 0: [n, 0]
};

/// Where a batch goes, for callers that want nothing else of its plan. Of R ranks, E experts.
struct Reach {
  Tensor in_rank;            // [T, R] uint8
  Tensor tokens_per_rank;    // [R] int32
  Tensor tokens_per_expert;  // [E] int32 (token, column) pairs
};

struct DispatchInput {
  TensorView x;        // [T, H], rows a multiple of 16 bytes; any row stride
  TensorView scales;   // optional [T, P] of a 4-byte type, any strides; travels with x untouched
  TensorView weights;  // optional [T, K] float32
  TensorView global_scale{};  // quantise nvfp4: one float32 G, where x is; rows stand for q * scale / G. Not set: 1
  // Statistics, added to where the call runs, so that graphs count, too: what of the call's dispatches each expert got, [L]
  // int32 (also rows past the capacity), and the nanoseconds that this rank waited for each peer's counts, [R] int64.
  TensorView counts_total{};
  TensorView waits_total{};
  // [L] int64, expert-major and slab: lets a kernel begin with an expert while rows of others are on their way. Expert e's
  // element has reached n x 2^32 when all that the n-th call with this tensor puts out for e may be read: its rows, scales,
  // weights and sources, its count and its offsets. Read it by acquire loads on the device where it lies. It only grows; start
  // it at 0, and again after a reset(), as a call that ends in a fault may bring it a call too far.
  TensorView expert_ready{};
};

struct DispatchOptions {
  Layout layout{};         // token_major, expert_major or slab
  int alignment = 1;       // expert-major: groups begin at multiples of it; token-major: of the aligned counts
  Quantise quantise{};     // inside the dispatch: none, or narrower forms of bf16 rows
  ScaleLayout scale_layout{};  // of Received::scales
  bool fixed_size = false; // outputs have their worst-case size, and the host waits for nothing. A slab always is.
  int64_t capacity = -1;   // rows of the fixed-size outputs; -1 = worst case. Rows past it are dropped and counted.
  int max_tokens = 0;      // of any rank; 0 = the buffer's
  bool zero_padding = false;  // clear rows that hold nothing
  bool drop_overflow = false; // rows past the capacity: count them only; else Error{overflow} after the call
  bool wide_ids = false;      // token-major: ids come as int64
  // Fewer tensors to make: none of expert_offsets and dropped; row_source, and of grouped rows weights, only if weights are sent;
  // row_token of a slab only, as [L, R x M]; exact sizes: no num_per_expert, which counts tells.
  bool few_outputs = false;
  Placement on;               // fixed_size on a stream: the host waits for nothing, and learns of no overflow
};

/// Outputs that a layout does not have are not set.
struct Received {
  Tensor x;                // [rows, H]; slab [L, R x M, H]; quantise nvfp4: bytes, H / 2 of them
  // [rows, P]; slab [L, R x M, P] with strides (P R M, 1, R M). In tiles [rows / 128, P, 32, 4], word w of row r at
  // [r / 128, w, r % 32, r % 128 / 32]; slab [L, R x M / 128, P, 32, 4]. rows / 128 is rounded up.
  Tensor scales;
  Tensor ids;              // token-major [rows, K] int32 (wide_ids: int64) local ids, -1 = not local or padding
  Tensor weights;          // token-major [rows, K] float32, 0 where ids is -1; others [rows], those of duplicates added
  Tensor num_per_expert;   // [L] int32: token-major pairs, others rows
  Tensor expert_offsets;   // [L + 1] int64, first row of each expert's group; not token-major
  Tensor row_source;       // [rows] int32 source rank of each row, -1 = none
  Tensor row_token;        // [rows] int32 token index in its source, -1 = none (slab: [L, R x M], its src_info)
  Tensor layout_range;     // slab [L, R] int64: count in the low half, first place in the high half
  // Where the host did not wait (fixed_size on a stream): empty, 0, and all rows; handle.status() and dropped tell more.
  std::vector<int> masked; // sources whose part is missing
  int64_t num_dropped = 0;
  std::vector<int32_t> counts;  // exact mode: num_per_expert, for the host
  int64_t num_rows = 0;    // exact mode: rows of x that hold tokens or lie in gaps between groups
  Handle handle;
  Tensor dropped;          // [1] int64, num_dropped
};

/// Signals of a kernel that makes a combine's rows beside it: they are read once these show `wanted`, by the buffer's deadline.
struct RowSignals {
  TensorView words;    // int32, contiguous: [L] one for all rows of an expert; with rows_each [L x ceil(R M / rows_each)] or more
  TensorView counts{};  // [L] int32 rows of each expert, with rows_each
  int rows_each = 0;
  uint32_t wanted = 0;
};

struct CombineInput {
  TensorView x;                // the experts' rows in the dispatch's layout: [rows, H] or [L, R x M, H]; bf16, fp16, fp32
  TensorView bias0, bias1;     // optional [T, H] of the output's dtype, added first
  TensorView row_weights;      // optional: token-major [rows, K], others [rows] float32; returned as Combined::weights
  TensorView weights;          // optional [T, K] float32: weights that the dispatch was not given
  TensorView waits_total{};    // statistics: optional [R] int64, as a dispatch's
  RowSignals ready{};          // of a slab's rows; words not set: they are there
};

struct CombineOptions {
  bool weighted = false;     // multiply with the weights given to the dispatch; expert-major and slab
  ResultWire wire = ResultWire::usual;
  std::optional<DType> out_dtype;  // default: x's
  TensorView out;            // optional [T, H] to write to
  Placement on;
};

struct Combined {
  Tensor x;                // [T, H]
  Tensor weights;          // [T, K] float32 if row_weights were given
  std::vector<int> masked; // owners whose part is missing; empty where the host did not wait (a call on a stream)
};

/// A call whose receive has yet to run. The tensors of `result` exist, and are valid after receive(); so is all else of it.
template <class Result>
struct Split {
  std::shared_ptr<const Result> result;
  std::function<void()> receive;  // once, from any thread; else the second call after it does. Arguments are in use until then
};

/// One rank's end of the pair of operations. All ranks make the same calls in the same order. Any thread may call, one at
/// a time: calls take a lock. Blocking calls return when done; errors leave the buffer usable unless they say otherwise.
class Buffer {
 public:
  /// Collective. Throws Error{mismatch} on every rank if settings differ.
  Buffer(std::shared_ptr<Bootstrap>, Config);
  ~Buffer();
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(Buffer&&) noexcept;

  const Topology& topology() const;
  /// With what was left to the buffer filled in: num_sms.
  const Config& config() const;
  /// How peers reach this rank's window: heap, shared memory; on GPUs fabric, descriptor, pinned (host memory), or mixed:
  /// descriptor for some and pinned for others.
  const std::string& windows() const;
  /// The same for each rank, never mixed.
  const std::vector<std::string>& paths() const;

  /// From ids [T, K], int32 or int64, -1 = none. Local. Throws Error{usage} for an id outside [-1, E).
  /// On a stream nobody waits: such an id counts as none, and the first dispatch that can know of it refuses the plan.
  Plan plan(const TensorView& ids, const Placement& = {});
  /// The same of such ids, in memory of the allocator.
  Reach reach(const TensorView& ids, const Placement& = {});
  /// From [T, R] bool or uint8, without ids: token-major only.
  Plan plan_from_rank_map(const TensorView& is_token_in_rank, const Placement& = {});

  /// The handle of a token-major dispatch of exact size along `plan`, once more, from copies of its tensors. Local.
  /// Throws Error{usage} for tensors that no such dispatch of this buffer can have had.
  /// On a GPU the host waits for the tensors.
  Handle handle(const Plan&, const RouteTensors&, const Placement& = {});

  /// Every token goes once to each rank that owns one of its experts. Collective.
  Received dispatch(const Plan&, const DispatchInput&, const DispatchOptions& = {});
  /// The same from ids, without a plan of before: Handle::plan() gives it. On a GPU's stream the dispatch makes the plan in its
  /// own launch where it can; an id outside [-1, E) counts as none then.
  Received dispatch(const TensorView& ids, const DispatchInput&, const DispatchOptions& = {});
  /// The same route again: outputs have the sizes of the first time, and the same order.
  Received dispatch(const Handle&, const DispatchInput&, DispatchOptions = {});
  /// Sends and returns. At most two may wait for their receive; a third send runs that of the first.
  Split<Received> dispatch_send(const Plan&, const DispatchInput&, const DispatchOptions& = {});
  Split<Received> dispatch_send(const TensorView& ids, const DispatchInput&, const DispatchOptions& = {});

  /// Brings the experts' rows back and sums them in FP32. Collective.
  Combined combine(const Handle&, const CombineInput&, const CombineOptions& = {});
  Split<Combined> combine_send(const Handle&, const CombineInput&, const CombineOptions& = {});

  /// Masks a peer: both ends stop exchanging anything until a reset(). Its part of every result is zero.
  void mask(int rank);
  std::vector<int> masked() const;

  /// Repairs the buffer after a fault, for `members` (default: all ranks); every member must call it. Others are removed.
  void reset(std::vector<int> members = {});

  /// Makes a call whose arguments the caller cannot hand over (it has no such type, say): the others raise Error{refused}
  /// that names `argument`, and the next call works.
  void refuse_dispatch(std::string_view argument);
  void refuse_combine(std::string_view argument);

  /// Ends the wait of the call in progress by Error{faulted}; reset() is needed then. From any thread or signal handler.
  void interrupt();

  /// Local: peers that still wait for this rank get an error that says so. Idempotent.
  void destroy();
  bool is_destroyed() const;

  /// Whether peers write rows into outputs themselves, where they lie in the buffer's heap (Config::heap_bytes).
  bool has_heap() const;
  /// While the result lives, heddle_heap_malloc() takes this thread's memory from the heap, which a framework's own allocator
  /// may call to make outputs there. To be let go of in the same thread; null without a heap.
  std::shared_ptr<void> use_heap();

  /// How outputs are made; default: host memory, or memory of the GPU that a later call of this buffer may take once
  /// the output is dropped.
  void set_allocator(Allocate);
  Metrics metrics() const;

 private:
  friend struct BufferAccess;
  explicit Buffer(struct BufferParts);  // tests
  std::shared_ptr<class Calls> calls_;
};

}  // namespace heddle
