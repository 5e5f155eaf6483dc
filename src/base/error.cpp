#include "base/error.hpp"

namespace heddle {

const char* name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage: return "usage";
    case ErrorCode::refused: return "refused";
    case ErrorCode::mismatch: return "mismatch";
    case ErrorCode::timeout: return "timeout";
    case ErrorCode::faulted: return "faulted";
    case ErrorCode::destroyed: return "destroyed";
    case ErrorCode::overflow: return "overflow";
    case ErrorCode::system: return "system";
  }
  return "unknown";
}

}  // namespace heddle
