// A low-latency dispatch: a warp casts a part of a token's row and writes it to every rank that wants it; another one, there,
// takes it to the rows of the token's hits. Leaves what Dispatch leaves.
#pragma once

#include <climits>
#include <cstdint>

#include "cuda/decode_lost.cuh"
#include "cuda/decode_rows.cuh"

namespace heddle {

/// By all threads of the closer's block.
__device__ __noinline__ inline void close_decode(const DirectPort& port, const DispatchArgs& args, const Site& site,
                                                 bool received, bool faulted) {
  if (args.makes_plan && site.decode->repeats != 0) recount_pairs(args);
  if (received && (faulted || (is_unusual(site) && is_refused_unheard(args.call, site)))) poison_dispatch(Block(), args);
  if (received && faulted) give_up_experts(Block(), args);
  if (received && !faulted && site.decode->lost != 0) drop_lost_sources(Block(), args, site.decode->lost);
  report_step(Block(), port, args.call, site, [&](Report& report) {
    if (received) report_drops(args, report);
  });
}

/// The n-th item that a warp receives where experts are told as ready: all are of one source, if there are warps enough, so that
/// no source's rows wait for another's. At or past the last item: it has had all.
__device__ __noinline__ inline int nth_of_one_source(int n, int worker, int workers, int others, int parts) {
  if (others == 0) return 0;
  const int rest = workers % others;
  const int step = rest == workers ? workers : workers - rest;
  if (worker >= step) return INT_MAX;
  const int at = worker + n * step;
  const int of_source = at / others, slot = of_source / parts;
  return (slot * others + at - of_source * others) * parts + of_source - slot * parts;
}

class DecodeDispatch : DecodeRows {
 public:
  __device__ DecodeDispatch(const DirectPort& port, const DispatchArgs& args, const Site& site, const DecodeSite& decode,
                            DecodeBoard& board, std::byte* memory)
      : DecodeRows(port, args, site, decode, board, memory) {}

  __device__ void run() {
    if (decode_.sends() && !is_clerk()) {
      sets_.clear(topo_.world + topo_.experts);
      list_owners();
    }
    __syncthreads();
    await_launch_before();
    Ahead ahead;
    if (is_clerk()) open();
    else if (decode_.sends()) ahead = work_ahead();
    __syncthreads();
    let_next_start();
    if (is_clerk()) {
      keep_books();
      write_plan();
      if (decode_.receives() && is_last_block() && board_.opened != 0) await_workers();
      if (is_last_block()) write_state();
    } else if (board_.opened != 0) {
      if (decode_.sends()) sets_.count(topo_.world + topo_.experts);
      move(ahead);
    }
    finish_call();
  }

 private:
  /// This warp's first item, as far as it can be done before the call is open.
  struct Ahead {
    CastPart cast{};
    int32_t id = -1;
    float weight = 0.0f;
  };

  __device__ int items() const { return a_.plan.tokens * region_.parts; }

  __device__ Ahead work_ahead() const {
    Ahead ahead;
    uint4 columns[2]{};
    const bool has_item = worker() < items();
    if (has_item) {
      load_item(worker(), columns, ahead);
    }
    mark_sets();
    if (has_item) cast_item(worker(), columns, ahead);
    return ahead;
  }
  __device__ void load_item(int item, uint4 (&columns)[2], Ahead& ahead) const {
    const int token = divide(item, decode_.parts);
    caster_.load(token, item - token * region_.parts, columns);
    load_column(token, ahead.id, ahead.weight);
  }
  __device__ void cast_item(int item, const uint4 (&columns)[2], Ahead& ahead) const {
    const int token = divide(item, decode_.parts);
    ahead.cast = caster_.cast(columns, token, item - token * region_.parts);
  }

  // --- rows out ---

  __device__ void send_part(int token, int part, const CastPart& cast, const LaneRoute& route) const {
    const bool goes = route.is_first_of_owner && board_.live[route.owner] != 0 &&
                      (route.owner != topo_.rank || own_by_words());
    const int payload = region_.payload_words(part);
#pragma unroll 1
    for (unsigned left = __ballot_sync(kAllLanes, goes); left != 0; left &= left - 1) {
      const int column = __ffs(static_cast<int>(left)) - 1;
      const int peer = __shfl_sync(kAllLanes, route.owner, column);
      const int slot = __shfl_sync(kAllLanes, route.slot, column);
      std::byte* words = words_at(peer, topo_.rank);
      std::byte* row = words + region_.rows + (int64_t{slot} * region_.row_words + part * region_.part_words) * kWordBytes;
      if (lane() < payload) send_word(row + lane() * kWordBytes, cast.columns);
      if (lane() == 0) send_word(row + payload * kWordBytes, cast.scales);
      if (part != 0 || lane() >= topk_) continue;
      const WordRoute at_peer{.token = token,
                              .expert = route.owner == peer ? route.id - board_.first_expert[peer] : -1,
                              .ordinal = route.owner == peer ? route.ordinal : -1};
      store_word(words + region_.routes + (int64_t{slot} * topk_ + lane()) * kWordBytes,
                 {tagged(at_peer.packed(), board_.seq), tagged(__float_as_uint(route.weight), board_.seq)});
    }
  }

  /// By the last blocks, which have the fewest rows; but for the very last one.
  __device__ void put_notes() const {
    const int blocks = static_cast<int>(gridDim.x), before_last = blocks - 2 - static_cast<int>(blockIdx.x);
#pragma unroll 1
    for (int next = before_last < 0 ? before_last + blocks : before_last; next < topo_.world; next += blocks) {
      const int peer = topo_.rank + 1 + next - (topo_.rank + 1 + next < topo_.world ? 0 : topo_.world);
      if (board_.live[peer] == 0) continue;
      const bool by_words = peer != topo_.rank || own_by_words();
      const int32_t count = sets_.all(peer);
      const int local = board_.first_expert[peer + 1] - board_.first_expert[peer], first = topo_.world + board_.first_expert[peer];
      std::byte* table = words_at(peer, topo_.rank) + region_.table;
#pragma unroll 1
      for (int pair = threadIdx.x; by_words && pair < (local + 1) / 2; pair += kDecodeThreads) {
        const auto low = static_cast<uint32_t>(sets_.all(first + 2 * pair));
        const auto high = 2 * pair + 1 < local ? static_cast<uint32_t>(sets_.all(first + 2 * pair + 1)) : 0u;
        store_tagged(table + pair * int64_t{sizeof(uint64_t)}, tagged(low | high << 16, board_.seq));
      }
      if (by_words && threadIdx.x == kDecodeThreads - 1) put_note_to(peer, count, a_.plan.tokens);
    }
  }

  /// False: it does not come, or the call has ended in a fault.
  __device__ bool take_part(Moved& moved) const {
    const int source = moved.source, slot = moved.slot, part = moved.part;
    std::byte* words = words_from(source);
    std::byte* row = words + region_.rows + (int64_t{slot} * region_.row_words + part * region_.part_words) * kWordBytes;
    const int payload = region_.payload_words(part);
    std::byte* own = row + lane() * kWordBytes;
    std::byte* scales = row + payload * kWordBytes;
    const std::byte* routes = words + region_.routes + (int64_t{slot} * topk_ + lane()) * kWordBytes;
    const Word full{~uint64_t{0}, ~uint64_t{0}};
    Word columns = full, scale = full, route{tagged(0, board_.seq), tagged(0, board_.seq)};
    const auto poll = [&] {
      if (lane() < payload) columns = load_word(own);
      scale = load_word(scales);
      if (lane() < topk_) route = load_word(routes);
      return columns.is_here() && scale.is_here() && has_tag(route.low, wait_.seq) && has_tag(route.high, wait_.seq);
    };
    const Wanted wanted{.words = {lane() < payload ? own : nullptr, scales},
                        .tagged = {lane() < topk_ ? routes : nullptr, lane() < topk_ ? routes + 8 : nullptr},
                        .seq = wait_.seq};
    const Heard heard = await_words(port_, call_, wait_, source, wanted, poll);
    if (heard != Heard::nothing) {
      note_loss(source, heard);
      return false;
    }
    if (lane() < payload) store_word(own, {});
    if (lane() == 0) store_word(scales, {});
    const WordRoute at_me = WordRoute::of(static_cast<uint32_t>(route.low));
    if (lane() < topk_) {
      const float weight = __uint_as_float(static_cast<uint32_t>(route.high));
      moved.hit = {.expert = at_me.expert, .ordinal = at_me.ordinal, .weight = weight};
    }
    moved.token = __shfl_sync(kAllLanes, at_me.token, 0);
    moved.cast = {.columns = columns.data(), .scales = scale.data()};
    return true;
  }

  // --- the whole ---

  /// First the items of this rank's tokens, then those that others send. All of them end in place(), which is long.
  __device__ void move(Ahead ahead) {
    if (decode_.sends()) put_notes();
    const int sends = decode_.sends() ? items() : 0;
    bool is_first = true;
    int taken = 0;
#pragma unroll 1
    for (int item = worker();; item += workers()) {
      Moved moved;
      bool places = false;
      if (item < sends) {
        if (!is_first) {
          uint4 columns[2];
          load_item(item, columns, ahead);
          cast_item(item, columns, ahead);
        }
        places = send_item(item, ahead, moved);
      }
      if (is_first) {
        is_first = false;
        if (decode_.receives() && !hear_all()) return;
      }
      if (item >= sends) {
        if (!decode_.receives()) return;
        int next = item - sends;
        if (a_.out.ready.is_set()) next = nth_of_one_source(taken++, worker(), workers(), board_.others, region_.parts);
        if (next >= board_.most * board_.others * region_.parts) break;
        if (is_broken() || !receive_item(next, moved, places)) return;
      }
      if (places) place(moved);
    }
    clear_gaps();
  }

  /// All threads. False: the call has ended in a fault.
  __device__ bool hear_all() {
    bool ok = false, again = false;
    do {
      hear();
      ok = !any_worker(is_broken());
      again = ok && call_.ctx.mask_late_peers && any_worker(agree_on_source(board_, site_.decode, topo_));
    } while (again);
    if (ok) lay_out();
    if (is_last_block()) let_clerk_go();
    if (ok && is_last_block()) write_tables();
    return ok;
  }

  /// True if the token has hits here, which are then to be placed.
  __device__ bool send_item(int item, const Ahead& ahead, Moved& moved) const {
    moved.source = topo_.rank;
    moved.token = divide(item, decode_.parts);
    moved.part = item - moved.token * region_.parts;
    moved.cast = ahead.cast;
    const LaneRoute route = route_of(moved.token, ahead.id, ahead.weight);
    send_part(moved.token, moved.part, moved.cast, route);
    if (own_by_words() || board_.live[topo_.rank] == 0) return false;
    const bool is_mine = route.owner == topo_.rank;
    const unsigned mine = __ballot_sync(kAllLanes, is_mine);
    if (mine == 0) return false;
    moved.slot = __shfl_sync(kAllLanes, route.slot, __ffs(static_cast<int>(mine)) - 1);
    if (is_mine) moved.hit = {.expert = route.id - first_, .ordinal = route.ordinal, .weight = route.weight};
    return true;
  }

  /// The items of all sources go round them. False: the call has ended in a fault.
  __device__ bool receive_item(int item, Moved& moved, bool& places) const {
    const int row = divide(item, decode_.parts);
    moved.part = item - row * region_.parts;
    moved.slot = board_.others == 1 ? row : row / board_.others;
    moved.source = nth_source(row - moved.slot * board_.others);
    places = moved.slot < board_.count[moved.source] && !is_lost(moved.source);
    if (!places || take_part(moved)) return true;
    places = false;
    return !is_broken();
  }
  __device__ int nth_source(int n) const {
    int source = 0;
#pragma unroll 1
    for (;; ++source) {
      if (sends_here(source) && n-- == 0) return source;
    }
  }

  __device__ void finish_call() {
    end([&](bool faulted) { close_decode(port_, a_, site_, decode_.receives(), faulted); });
  }

};

}  // namespace heddle
