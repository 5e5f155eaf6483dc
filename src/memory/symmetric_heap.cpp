#include "memory/symmetric_heap.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/math.hpp"
#include "bootstrap/packing.hpp"
#include "bootstrap/together.hpp"
#include "memory/host_identity.hpp"
#include "memory/inbox.hpp"
#include "memory/window_offers.hpp"

namespace heddle {
namespace {

/// What a rank tells the others when heaps are made.
struct Introduction {
  std::string host;
  std::string process;
  std::uint64_t offer = 0;
  Bytes ticket;

  Bytes pack() const { return Packer().put(host).put(process).put(offer).put(ticket).bytes(); }
  static Introduction unpack(const Bytes& message) {
    Unpacker unpacker(message);
    Introduction peer;
    peer.host = unpacker.text();
    peer.process = unpacker.text();
    peer.offer = unpacker.number();
    peer.ticket = unpacker.blob();
    unpacker.finish();
    return peer;
  }
};

/// The segments of another process that have come, mapped in their order.
class ImportedHeap {
 public:
  ImportedHeap(std::shared_ptr<SegmentRange> range, int64_t limit) : range_(std::move(range)), limit_(limit) {}

  std::byte* first() const { return range_->first(); }

  /// How many segments from the first on are mapped now.
  int32_t take(const Note& note, Descriptor segment) {
    waiting_.emplace(note.number, Waiting{std::move(segment), note.bytes});
    for (auto next = waiting_.find(count_); next != waiting_.end(); next = waiting_.find(count_)) {
      const int64_t bytes = next->second.bytes;
      HEDDLE_CHECK(bytes > 0 && bytes <= limit_ - end_, "a segment of {} bytes, legal: 1 to {}", bytes, limit_ - end_);
      range_->map(next->second.segment, end_, bytes);
      waiting_.erase(next);
      end_ += bytes;
      ++count_;
    }
    return count_;
  }

 private:
  struct Waiting {
    Descriptor segment;
    int64_t bytes;
  };

  std::shared_ptr<SegmentRange> range_;
  const int64_t limit_;
  int64_t end_ = 0;
  int32_t count_ = 0;
  std::map<int32_t, Waiting> waiting_;  // those after one that has not come yet
};

struct Letter {
  int to;
  Note note;
  std::shared_ptr<Descriptor> segment;
};

constexpr std::uint64_t kRetryNs = 2'000'000;
constexpr std::uint64_t kRestNs = 1'000'000'000;  // it is woken when there is something to do

}  // namespace

class SymmetricHeap::Inside {
 public:
  Inside(Bootstrap& bootstrap, std::shared_ptr<Segments> segments, int64_t limit)
      : rank_(bootstrap.rank()), segments_(std::move(segments)), limit_(round_up(limit, segments_->unit())) {
    own_ = together(bootstrap, "heap: reserve addresses", [&] {
      HEDDLE_CHECK(limit_ > 0, "a heap of {} bytes, legal: 1 or more", limit_);
      return segments_->reserve(limit_, rank_);
    });
    inbox_ = together(bootstrap, "heap: open a socket", [] { return std::make_unique<Inbox>(); });
    const Mapping mine(own_, own_->first());
    const WindowOffer offer(mine);
    const Introduction self{host_identity(), process_identity(), offer.number(), inbox_->ticket()};
    const auto messages = bootstrap.all_gather(self.pack(), "heap: meet peers");
    together(bootstrap, "heap: reserve addresses for peers", [&] { return meet(messages, self); });
    if (!tickets_.empty()) courier_ = std::thread([this] { carry(); });
  }

  ~Inside() {
    stopping_.store(true);
    wake();
    if (courier_.joinable()) courier_.join();
  }
  Inside(const Inside&) = delete;

  std::byte* grow(int64_t wanted) {
    HEDDLE_CHECK(wanted > 0, "a heap grows by {} bytes, legal: 1 or more", wanted);
    const int64_t bytes = round_up(wanted, segments_->unit());
    const std::lock_guard growing(growing_);
    const int64_t offset = mapped();
    if (bytes > limit_ - offset) {
      fail(ErrorCode::system, "the symmetric heap is full: {} bytes wanted, {} of {} are left", bytes, limit_ - offset, limit_);
    }
    auto segment = std::make_shared<Descriptor>(segments_->make(bytes));
    own_->map(*segment, offset, bytes);
    post(segment, bytes);
    return own_->first() + offset;
  }

  PeerView view() const { return view_; }
  int64_t unit() const { return segments_->unit(); }
  int64_t limit() const { return limit_; }

  int64_t mapped() const {
    const std::lock_guard lock(mutex_);
    return ends_.empty() ? 0 : ends_.back();
  }

  int64_t imported() const {
    const std::lock_guard lock(mutex_);
    size_t count = ends_.size();
    for (const auto& [peer, theirs] : imported_) count = std::min(count, static_cast<size_t>(theirs));
    return count == 0 ? 0 : ends_[count - 1];
  }

  std::optional<int64_t> offset_of(const void* memory, int64_t bytes) const {
    const auto* at = static_cast<const std::byte*>(memory);
    if (std::less<>()(at, own_->first()) || !std::less<>()(at, own_->first() + limit_)) return std::nullopt;
    const int64_t offset = at - own_->first();
    if (offset + bytes > imported()) return std::nullopt;
    return offset;
  }

 private:
  /// Threads of this process see the heap where it is; other processes of this host get segments handed over.
  bool meet(const std::vector<Bytes>& messages, const Introduction& self) {
    view_.count = static_cast<int>(messages.size());
    view_.rank = rank_;
    for (int peer = 0; peer < view_.count; ++peer) {
      const Introduction other = Introduction::unpack(messages[static_cast<size_t>(peer)]);
      if (other.process == self.process) {
        ranges_here_.push_back(find_window(other.offer));
        if (!ranges_here_.back()) fail(ErrorCode::destroyed, "rank {} took its heap back before it was seen", peer);
        view_.windows[peer] = ranges_here_.back().get();
      } else if (other.host == self.host) {
        tickets_[peer] = other.ticket;
        imported_[peer] = 0;
        const auto added = peers_.emplace(peer, ImportedHeap(segments_->reserve(limit_, peer), limit_)).first;
        view_.windows[peer] = added->second.first();
      }
    }
    return true;
  }

  /// Hands a new segment to every other process.
  void post(const std::shared_ptr<Descriptor>& segment, int64_t bytes) {
    bool was_empty = false;
    {
      const std::lock_guard lock(mutex_);
      was_empty = letters_.empty();
      const Note note{.from = rank_, .number = static_cast<int32_t>(ends_.size()), .bytes = bytes};
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + bytes);
      for (const auto& [peer, ticket] : tickets_) letters_.push_back({peer, note, segment});
    }
    if (was_empty) wake();
  }

  /// If it cannot be woken it looks by itself, later.
  void wake() noexcept {
    try {
      if (courier_.joinable()) hand_in(inbox_->ticket(), {.from = rank_}, {});
    } catch (const Error& error) {
      log_debug("the courier of segments was not woken: {}", error.what());
    }
  }

  void carry() noexcept {
    try {
      while (!stopping_.load()) {
        const bool all_sent = send_letters();
        auto delivery = inbox_->take(now_ns() + (all_sent ? kRestNs : kRetryNs));
        if (delivery && delivery->note.from != rank_) receive(std::move(*delivery));
      }
    } catch (const std::exception& error) {
      log_warn("new segments of the heap stay without rows in place: {}", error.what());
    }
  }

  bool send_letters() {
    std::deque<Letter> letters;
    {
      const std::lock_guard lock(mutex_);
      letters.swap(letters_);
    }
    while (!letters.empty() && send(letters.front())) letters.pop_front();
    const std::lock_guard lock(mutex_);
    letters_.insert(letters_.begin(), std::make_move_iterator(letters.begin()), std::make_move_iterator(letters.end()));
    return letters_.empty();
  }

  /// False if it is to be tried again.
  bool send(const Letter& letter) {
    const HandIn outcome = hand_in(tickets_.at(letter.to), letter.note, letter.segment ? *letter.segment : kNothing);
    if (outcome == HandIn::refused) log_info("rank {} takes no segments any more: it has left", letter.to);
    return outcome != HandIn::crowded;
  }

  /// A segment of a peer, or its word on how many of ours it has mapped. A segment that cannot be mapped stays unanswered:
  /// its owner then goes on without rows in place.
  void receive(Inbox::Delivery delivery) {
    const int from = delivery.note.from;
    const auto peer = peers_.find(from);
    if (peer == peers_.end()) return log_warn("a segment came from rank {}, which is no process here", from);
    if (!delivery.descriptor) {
      const std::lock_guard lock(mutex_);
      imported_[from] = std::max(imported_[from], delivery.note.number);
      return;
    }
    try {
      const int32_t count = peer->second.take(delivery.note, std::move(delivery.descriptor));
      const std::lock_guard lock(mutex_);
      letters_.push_back({from, {.from = rank_, .number = count}, nullptr});
    } catch (const Error& error) {
      log_warn("segment {} of rank {} is not mapped: {}", delivery.note.number, from, error.what());
    }
  }

  static inline const Descriptor kNothing;

  const int rank_;
  const std::shared_ptr<Segments> segments_;
  const int64_t limit_;
  std::shared_ptr<SegmentRange> own_;
  std::unique_ptr<Inbox> inbox_;
  PeerView view_{};
  std::vector<Mapping> ranges_here_;
  std::map<int, Bytes> tickets_;       // of the other processes of this host
  std::map<int, ImportedHeap> peers_;  // the courier's
  std::mutex growing_;
  mutable std::mutex mutex_;  // of what follows
  std::vector<int64_t> ends_;
  std::map<int, int32_t> imported_;  // how many of our segments each of them has mapped
  std::deque<Letter> letters_;
  std::atomic<bool> stopping_{false};
  std::thread courier_;
};

SymmetricHeap::SymmetricHeap(Bootstrap& bootstrap, std::shared_ptr<Segments> segments, int64_t limit)
    : inside_(std::make_shared<Inside>(bootstrap, std::move(segments), limit)) {}
SymmetricHeap::~SymmetricHeap() = default;

std::shared_ptr<std::byte> SymmetricHeap::grow(int64_t bytes) { return {inside_, inside_->grow(bytes)}; }
PeerView SymmetricHeap::view() const { return inside_->view(); }
int64_t SymmetricHeap::unit() const { return inside_->unit(); }
int64_t SymmetricHeap::limit() const { return inside_->limit(); }
int64_t SymmetricHeap::mapped() const { return inside_->mapped(); }
int64_t SymmetricHeap::imported() const { return inside_->imported(); }
std::optional<int64_t> SymmetricHeap::offset_of(const void* memory, int64_t bytes) const {
  return inside_->offset_of(memory, bytes);
}

}  // namespace heddle
