#include "ops/in_flight.hpp"

#include <utility>

#include "base/error.hpp"

namespace heddle {

void InFlight::run_receive() noexcept {
  if (done_) return;
  done_ = true;
  try {
    receive();
  } catch (...) {
    error_ = std::current_exception();
  }
}

void InFlight::complete() {
  run_receive();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void InFlight::drop(std::string why) {
  if (done_) return;
  done_ = true;
  error_ = std::make_exception_ptr(Error(ErrorCode::faulted, why));
}

}  // namespace heddle
