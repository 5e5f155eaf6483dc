// What the workers of a block tell one another without a block-wide step: results of one lane, and what is to be
// announced.
//
// Announcing a piece to a peer takes a warp that stored it 1-3 us, most of it the release. So workers only post {word,
// value} in mailboxes of the block, and one of them, the publisher, makes one release for all that it finds (H200:
// worth 14-17 us of a dispatch of 4096 tokens).
#pragma once

#include <cstdint>

#include "base/macros.hpp"
#include "device/atomic.hpp"
#include "device/block.hpp"
#include "device/wait.hpp"

namespace heddle {

/// A function that keeps its registers to itself: on a GPU, one large function spills what several small ones hold.
#ifdef __CUDACC__
#define HEDDLE_APART __noinline__
#else
#define HEDDLE_APART
#endif

inline constexpr int kMostWorkers = 16;
inline constexpr int kMailboxes = 8;  // of each worker: a release takes long where much is on its way

struct Mailbox {
  uint64_t word = 0;  // an address; 0: free
  uint64_t value = 0;
};

/// In the memory of a block.
struct Board {
  uint64_t working = 0;  // workers that may still post
  uint64_t told[kMostWorkers] = {};
  Mailbox boxes[kMostWorkers * kMailboxes];
};

/// A worker's place at the board of its block. All lanes of the worker call together.
template <class Coop, class Port>
class Desk {
 public:
  /// No wait here is for a peer. Should one last longer than `patience_ns` all the same, the worker does without the others.
  HEDDLE_HD Desk(const Coop& coop, Port& port, Board* board, uint64_t patience_ns)
      : coop_(coop), port_(port), board_(board), worker_(coop.thread() / coop.lanes()), patience_ns_(patience_ns) {}

  HEDDLE_HD int worker() const { return worker_; }
  HEDDLE_HD int workers() const { return coop_.threads() / coop_.lanes(); }
  /// With one worker there is nobody to publish but itself.
  HEDDLE_HD bool has_publisher() const { return workers() > 1; }
  HEDDLE_HD bool is_publisher() const { return has_publisher() && worker_ == workers() - 1; }

  /// By all workers of the block, before the first of them posts and after the last of an earlier round has left.
  HEDDLE_HD void open() {
    coop_.block_sync();
    if (coop_.thread() == 0) board_->working = static_cast<uint64_t>(workers() - (has_publisher() ? 1 : 0));
    for (int box = coop_.thread(); box < kMostWorkers * kMailboxes; box += coop_.threads()) board_->boxes[box].word = 0;
    turn_ = 0;
    coop_.block_sync();
  }

  /// What lane 0 has; the others pass anything.
  HEDDLE_HD uint64_t tell(uint64_t value) const {
    coop_.worker_sync();
#if HEDDLE_ON_DEVICE
    value = __shfl_sync(0xFFFFFFFFu, static_cast<unsigned long long>(value), 0);
#else
    if (coop_.lane() == 0) board_->told[worker_] = value;
    coop_.worker_sync();
    value = board_->told[worker_];
#endif
    coop_.worker_sync();
    return value;
  }

  /// The largest of all lanes' values.
  HEDDLE_HD uint64_t worst(uint64_t value) const {
    coop_.worker_sync();
    if (coop_.lane() == 0) board_->told[worker_] = 0;
    coop_.worker_sync();
    if (value != 0) max_block(&board_->told[worker_], value);
    coop_.worker_sync();
    return board_->told[worker_];
  }

  /// The word of the port's peer will show `value` once all that this worker has stored so far is there; never, if
  /// that is not sound.
  HEDDLE_HD void post(int peer, int64_t offset, uint64_t value, bool is_sound = true) {
    coop_.worker_sync();
    const int box = worker_ * kMailboxes + turn_;
    turn_ = (turn_ + 1) % kMailboxes;
    if (coop_.lane() != 0 || !is_sound) return;
    if (!has_publisher()) return port_.mark(peer, offset, value);
    Mailbox& mailbox = board_->boxes[box];
    Patience patience(patience_ns_);  // the publisher waits for nobody
    for (int attempt = 0; load_block(&mailbox.word) != 0; ++attempt) {
      if (patience.is_over(attempt, [&] { return port_.now(); })) return port_.mark(peer, offset, value);
      port_.relax(attempt);
    }
    mailbox.value = value;
    store_block(&mailbox.word, reinterpret_cast<uint64_t>(port_.word_at(peer, offset)));
  }

  /// This worker posts no more.
  HEDDLE_HD void leave() const {
    coop_.worker_sync();
    if (coop_.lane() == 0 && !is_publisher()) leave_block(&board_->working);
  }

  /// The publisher's work: until all others have left, and all that they posted is announced.
  HEDDLE_HD void publish() const {
    Patience patience(patience_ns_);  // workers wait for the GPU's own memory only
    for (int attempt = 0;; ++attempt) {
      // Looked at before the mailboxes: nothing comes after.
      const bool last = tell(coop_.lane() == 0 && goes_on(attempt, patience)) == 0;
      bool found = false;
      for (int box = coop_.lane(); box < kMostWorkers * kMailboxes; box += kAtOnce * coop_.lanes()) found |= empty(box);
      if (last) return;
      if (!found) port_.relax(attempt);
    }
  }

 private:
  /// By one lane: workers may still post, and there is time.
  HEDDLE_HD bool goes_on(int attempt, Patience& patience) const {
    return load_block(&board_->working) != 0 && !patience.is_over(attempt, [&] { return port_.now(); });
  }

  static constexpr int kAtOnce = 4;

  /// Mailboxes box, box + lanes, ...: all that is in them after one release.
  HEDDLE_HD bool empty(int box) const {
    Mailbox found[kAtOnce];
    bool any = false;
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = box + i * coop_.lanes();
      if (at >= kMostWorkers * kMailboxes) continue;
      Mailbox& mailbox = board_->boxes[at];
      const uint64_t word = load_block(&mailbox.word);
      if (word == 0) continue;
      found[i] = {word, mailbox.value};
      store_block(&mailbox.word, 0);
      any = true;
    }
    if (!any) return false;
    release_all();
    for (const Mailbox& mailbox : found) {
      if (mailbox.word != 0) store_released(reinterpret_cast<uint64_t*>(mailbox.word), mailbox.value);
    }
    return true;
  }

  const Coop& coop_;
  Port& port_;
  Board* board_;
  int worker_;
  uint64_t patience_ns_;
  int turn_ = 0;
};

}  // namespace heddle
