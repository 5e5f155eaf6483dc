// What every kind of symmetric memory must do.
#pragma once

#include "bootstrap/bootstrap.hpp"
#include "memory/symmetric_memory.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace heddle::testing {

/// Every window is there, page-aligned and all zero.
inline void expect_fresh(const SymmetricMemory& memory, int ranks) {
  EXPECT_EQ(memory.view().count, ranks);
  EXPECT_EQ(memory.view().local(), memory.local());
  for (int peer = 0; peer < ranks; ++peer) {
    const std::byte* window = memory.peer(peer);
    ASSERT_NE(window, nullptr) << "peer " << peer;
    EXPECT_EQ(window, memory.view().peer(peer));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(window) % page_bytes(), 0u);
  }
  for (std::size_t i = 0; i < memory.bytes(); ++i) ASSERT_EQ(memory.local()[i], std::byte{0}) << "byte " << i;
}

/// Each rank leaves a mark of its own in the first and the last bytes of every window, its own included.
inline void expect_all_to_all(const SymmetricMemory& memory, Bootstrap& bootstrap) {
  bootstrap.barrier("windows checked");
  const int ranks = bootstrap.size();
  const auto mark = [](int from, int to) { return std::byte(from * 7 + to + 1); };
  const std::size_t last = memory.bytes() - static_cast<std::size_t>(ranks);
  for (int peer = 0; peer < ranks; ++peer) {
    memory.peer(peer)[memory.rank()] = mark(memory.rank(), peer);
    memory.peer(peer)[last + static_cast<std::size_t>(memory.rank())] = mark(memory.rank(), peer);
  }
  bootstrap.barrier("marks written");
  for (int peer = 0; peer < ranks; ++peer) {
    EXPECT_EQ(memory.local()[peer], mark(peer, memory.rank())) << "from " << peer;
    EXPECT_EQ(memory.local()[last + static_cast<std::size_t>(peer)], mark(peer, memory.rank())) << "from " << peer;
  }
  bootstrap.barrier("marks read");
}

inline std::size_t open_descriptors() {
  const auto list = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(list), end(list)));
}

struct AddressSpace {
  std::size_t shared_mappings = 0;
  std::size_t bytes = 0;
};

inline AddressSpace address_space() {
  std::ifstream maps("/proc/self/maps");
  AddressSpace space;
  for (std::string line; std::getline(maps, line);) {
    std::size_t first = 0, last = 0;
    char access[5] = {};
    std::sscanf(line.c_str(), "%zx-%zx %4s", &first, &last, access);
    if (access[3] == 's') ++space.shared_mappings;
    space.bytes += last - first;
  }
  return space;
}

/// Runs `cycle`, which builds and destroys windows of `bytes`, 100 times. The address space may grow by what threads
/// and the allocator keep, but not by a window a cycle.
template <class Cycle>
void expect_nothing_left(std::size_t bytes, Cycle cycle) {
  cycle();
  const std::size_t descriptors = open_descriptors();
  const AddressSpace before = address_space();
  for (int i = 0; i < 100; ++i) cycle();
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(address_space().shared_mappings, before.shared_mappings);
  EXPECT_LT(address_space().bytes, before.bytes + 25 * bytes);
}

}  // namespace heddle::testing
