// A range of this process's address space that is unmapped when its last holder lets go.
#pragma once

#include <cstddef>
#include <memory>

namespace heddle {

/// First byte of the range, page-aligned. The deleter knows the length and how the range was made.
using Mapping = std::shared_ptr<std::byte>;

std::size_t page_bytes();

/// `bytes` rounded up to whole pages.
std::size_t whole_pages(std::size_t bytes);

/// Private to this process, zero-filled, backed by memory only where touched. Throws Error{system}.
Mapping map_anonymous(std::size_t bytes);

/// The first `bytes` of what `descriptor` names, shared with whoever maps it too; the descriptor may be closed
/// afterwards. Throws Error{system}.
Mapping map_shared(int descriptor, std::size_t bytes);

}  // namespace heddle
