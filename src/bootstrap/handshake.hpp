// How a peer and rank 0 prove to one another that they hold the group's secret: each answers the other's random nonce,
// so that nothing a listener hears can be used again. What follows on the connection is neither encrypted nor signed.
//
//   rank 0 -> peer   Challenge
//   peer -> rank 0   Answer, with a proof over both
//   rank 0 -> peer   Verdict, with a proof over both
#pragma once

#include "bootstrap/token.hpp"

#include <cstdint>
#include <string_view>

namespace heddle {

// Fixed sizes: nothing that a stranger says can make us read or allocate more.
struct Challenge {
  std::uint32_t magic;
  std::uint32_t version;
  Token nonce;
};

struct Answer {
  std::uint32_t magic;
  std::int32_t rank;
  std::int32_t size;
  Token nonce;
  Token proof;
};

enum class Admission : std::uint32_t { admitted, wrong_secret, wrong_size, wrong_rank };

const char* name_of(Admission);

struct Verdict {
  std::uint32_t magic;
  Admission admission;
  Token proof;
};

static_assert(sizeof(Challenge) == 40 && sizeof(Answer) == 76 && sizeof(Verdict) == 40, "no padding may be sent");

struct Claim {
  int rank;
  int size;
};

Challenge make_challenge();

/// The peer's. Throws Error{mismatch} if the challenge is not ours, or of another version.
Answer make_answer(const Challenge&, Claim, std::string_view secret);

/// Rank 0's, for a group of `size`; it knows itself which ranks are taken.
Admission judge(const Challenge&, const Answer&, int size, std::string_view secret);

/// Only to somebody admitted does the verdict prove anything.
Verdict make_verdict(const Challenge&, const Answer&, Admission, std::string_view secret);

/// The peer's. Throws Error{mismatch} unless it was admitted, by somebody who holds the secret.
void check_verdict(const Challenge&, const Answer&, const Verdict&, std::string_view secret);

}  // namespace heddle
