#include "bootstrap/handshake.hpp"

#include "base/error.hpp"
#include "bootstrap/hmac.hpp"

#include <vector>

namespace heddle {
namespace {

constexpr std::uint32_t kMagic = 0x4c444548;  // "HEDL"
constexpr std::uint32_t kVersion = 1;

template <class T>
void append(std::vector<std::byte>& bytes, const T& value) {
  const auto raw = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

// `role` keeps one side's proof from being played back as the other's.
Token prove(std::string_view role, const Challenge& challenge, Answer answer, std::string_view secret) {
  answer.proof = {};
  std::vector<std::byte> message;
  for (const char letter : role) message.push_back(static_cast<std::byte>(letter));
  append(message, challenge);
  append(message, answer);
  return hmac_sha256(secret, message);
}

}  // namespace

const char* name_of(Admission admission) {
  switch (admission) {
    case Admission::admitted: return "admitted";
    case Admission::wrong_secret: return "wrong secret";
    case Admission::wrong_size: return "wrong group size";
    case Admission::wrong_rank: return "rank taken or out of range";
  }
  return "unknown";
}

Challenge make_challenge() { return {kMagic, kVersion, random_token()}; }

Answer make_answer(const Challenge& challenge, Claim claim, std::string_view secret) {
  if (challenge.magic != kMagic) {
    fail(ErrorCode::mismatch, "whoever listens there is not rank 0 of a Heddle group: magic {:#x}, wanted {:#x}",
         challenge.magic, kMagic);
  }
  if (challenge.version != kVersion) {
    fail(ErrorCode::mismatch, "rank 0 speaks version {} of the handshake, rank {} version {}", challenge.version,
         claim.rank, kVersion);
  }
  Answer answer{kMagic, claim.rank, claim.size, random_token(), {}};
  answer.proof = prove("peer", challenge, answer, secret);
  return answer;
}

Admission judge(const Challenge& challenge, const Answer& answer, int size, std::string_view secret) {
  // The proof first: a stranger is told nothing about the group.
  const Token wanted = prove("peer", challenge, answer, secret);
  if (answer.magic != kMagic || !same_secret(answer.proof, wanted)) return Admission::wrong_secret;
  if (answer.size != size) return Admission::wrong_size;
  if (answer.rank < 1 || answer.rank >= size) return Admission::wrong_rank;
  return Admission::admitted;
}

Verdict make_verdict(const Challenge& challenge, const Answer& answer, Admission admission, std::string_view secret) {
  const bool known = admission != Admission::wrong_secret;
  return {kMagic, admission, known ? prove("host", challenge, answer, secret) : Token{}};
}

void check_verdict(const Challenge& challenge, const Answer& answer, const Verdict& verdict, std::string_view secret) {
  if (verdict.magic != kMagic || verdict.admission == Admission::wrong_secret) {
    fail(ErrorCode::mismatch, "rank 0 refused rank {}: its secret is another", answer.rank);
  }
  if (!same_secret(verdict.proof, prove("host", challenge, answer, secret))) {
    fail(ErrorCode::mismatch, "whoever listens as rank 0 does not hold the secret of rank {}", answer.rank);
  }
  if (verdict.admission == Admission::wrong_size) {
    fail(ErrorCode::mismatch, "rank 0 refused rank {}: its group is not of {} ranks", answer.rank, answer.size);
  }
  if (verdict.admission != Admission::admitted) {
    fail(ErrorCode::mismatch, "rank 0 refused rank {}: that rank is taken, or not one of 1 to {}", answer.rank,
         answer.size - 1);
  }
}

}  // namespace heddle
