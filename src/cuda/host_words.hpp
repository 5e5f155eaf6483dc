// Host memory that kernels write and the host reads while they run.
#pragma once

#include <cstddef>
#include <memory>

namespace heddle {

/// Pinned, zeroed, at the same address for the host and every GPU. Throws Error{system}.
std::shared_ptr<std::byte> map_host_words(size_t bytes);

template <class T>
std::shared_ptr<T> map_host_array(size_t count) {
  const auto memory = map_host_words(count * sizeof(T));
  return {memory, reinterpret_cast<T*>(memory.get())};
}

}  // namespace heddle
