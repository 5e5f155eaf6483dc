// Memory on a Machine for the tensors of one rank, and what they hold.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/machine.hpp"

namespace heddle::testing {

using TableBytes = std::vector<uint8_t>;
/// By the name of a tensor.
using Tables = std::map<std::string, TableBytes>;

/// It starts out filled with one byte, so that what a step must not touch shows.
class StepMemory {
 public:
  static constexpr uint8_t kFill = 0x5A;

  struct Table {
    const char* name;
    const void* data;  // null: there is none
    size_t bytes;
  };

  StepMemory(Machine& machine, bool fills) : machine_(machine), fills_(fills) {}

  template <class T>
  T* take(int64_t count, uint8_t fill = kFill) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    blocks_.push_back(machine_.backend().allocate(bytes));
    if (fill != 0) this->fill(blocks_.back().get(), bytes, fill);
    return static_cast<T*>(blocks_.back().get());
  }

  template <class T>
  T* upload(const std::vector<T>& values) {
    T* data = take<T>(static_cast<int64_t>(values.size()), 0);
    if (!values.empty()) machine_.write(data, values.data(), values.size() * sizeof(T));
    return data;
  }

  template <class T>
  T at(const T* word) {
    T value{};
    machine_.read(&value, word, sizeof value);
    return value;
  }

  /// As a block begins, unless nobody looks (MachineOptions::fills).
  void fill(void* data, size_t bytes, uint8_t fill = kFill) {
    if (fills_ && bytes > 0) machine_.write(data, TableBytes(bytes, fill).data(), bytes);
  }

  Tables dump(const std::vector<Table>& tables) {
    Tables read;
    for (const Table& table : tables) {
      if (table.data == nullptr) continue;
      TableBytes& bytes = read[table.name];
      bytes.resize(table.bytes);
      if (table.bytes > 0) machine_.read(bytes.data(), table.data, table.bytes);
    }
    return read;
  }

 private:
  Machine& machine_;
  const bool fills_;
  std::vector<std::shared_ptr<void>> blocks_;
};

}  // namespace heddle::testing
