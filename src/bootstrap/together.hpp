// Start-up steps that can fail on one rank only, such as mapping memory: either all ranks go on or all throw.
#pragma once

#include "base/error.hpp"
#include "bootstrap/bootstrap.hpp"

#include <optional>

namespace heddle {

/// Collective. `mine` is what went wrong here, if anything did. Throws the error of the lowest failed rank, with that
/// rank named, on every rank.
void fail_together(Bootstrap&, std::string_view operation, const std::optional<Error>& mine);

/// Collective. Returns step(), which must not be collective itself, unless it threw on any rank.
template <class Step>
auto together(Bootstrap& bootstrap, std::string_view operation, Step step) {
  std::optional<decltype(step())> result;
  std::optional<Error> error;
  try {
    result.emplace(step());
  } catch (const Error& caught) {
    error = caught;
  } catch (const std::exception& caught) {
    error = Error(ErrorCode::system, caught.what());
  }
  fail_together(bootstrap, operation, error);
  return std::move(*result);
}

}  // namespace heddle
