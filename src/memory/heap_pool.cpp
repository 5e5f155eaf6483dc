#include "memory/heap_pool.hpp"

#include <algorithm>
#include <iterator>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/math.hpp"

namespace heddle {
namespace {

constexpr int64_t kAlign = 256;

}  // namespace

std::optional<HeapPool::Block> HeapPool::take(int64_t bytes, Reach reach) {
  const int64_t room = round_up(std::max<int64_t>(bytes, 1), kAlign);
  const std::lock_guard lock(mutex_);
  const auto end = [&] { return reach == Reach::all_peers ? heap_->imported() : heap_->mapped(); };
  auto offset = find(room, end());
  if (!offset && !find(room, heap_->mapped()) && grow(room)) offset = find(room, end());
  if (!offset) return std::nullopt;
  carve(*offset, room);
  std::byte* memory = heap_->view().local() + *offset;
  return Block{{memory, [pool = shared_from_this(), first = *offset, room](void*) { pool->give(first, first + room); }},
               *offset};
}

/// First fit below `end`.
std::optional<int64_t> HeapPool::find(int64_t bytes, int64_t end) const {
  for (const auto& [first, last] : free_) {
    if (std::min(last, end) - first >= bytes) return first;
  }
  return std::nullopt;
}

bool HeapPool::grow(int64_t bytes) {
  const int64_t before = heap_->mapped();
  const int64_t left = heap_->limit() - before;
  if (bytes > left) return false;
  try {
    heap_->grow(std::min(std::max(bytes, step_), left));
  } catch (const Error& error) {
    log_warn("rows are staged, since the heap for rows in place does not grow: {}", error.what());
    return false;
  }
  give_locked(before, heap_->mapped());
  return true;
}

void HeapPool::carve(int64_t offset, int64_t bytes) {
  const int64_t end = free_.at(offset);
  free_.erase(offset);
  if (offset + bytes < end) free_[offset + bytes] = end;
}

void HeapPool::give(int64_t first, int64_t end) {
  const std::lock_guard lock(mutex_);
  give_locked(first, end);
}

/// Joins its neighbours.
void HeapPool::give_locked(int64_t first, int64_t end) {
  auto next = free_.upper_bound(first);
  if (next != free_.end() && next->first == end) {
    end = next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin() && std::prev(next)->second == first) std::prev(next)->second = end;
  else free_[first] = end;
}

}  // namespace heddle
