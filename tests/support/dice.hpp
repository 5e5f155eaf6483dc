// Seeded choices, the same with every standard library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>

namespace heddle::testing {

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}

  /// 0 to sides - 1.
  int below(int sides) { return static_cast<int>(engine_() % static_cast<uint64_t>(sides)); }
  bool one_in(int chances) { return below(chances) == 0; }
  uint64_t word() { return engine_(); }

  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + below(static_cast<int>(values.size())));
  }
  template <class List>
  auto one_of(const List& values) -> decltype(values[0]) {
    return values[static_cast<size_t>(below(static_cast<int>(std::size(values))))];
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace heddle::testing
