// A socket by which peers of this host hand a descriptor in, or only a note. It has no name in any file system, so nothing is left of
// it after a kill; and since any process of the host may connect, whoever does must show our token in its one message.
#pragma once

#include "base/descriptor.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/token.hpp"

#include <cstdint>
#include <optional>

namespace heddle {

/// What a descriptor is, in numbers that the two sides know how to read.
struct Note {
  std::int32_t from = 0;
  std::int32_t number = 0;
  std::int64_t bytes = 0;
};

/// Not thread-safe. At most kMaxStrangers connections that have not said anything are kept; the oldest goes first.
class Inbox {
 public:
  static constexpr std::size_t kMaxStrangers = 256;

  struct Delivery {
    Note note;
    Descriptor descriptor;  // empty if only the note came
  };

  Inbox();

  /// What a peer needs for hand_in. Tell nobody else.
  Bytes ticket() const;

  /// The next delivery, or nothing once now_ns() reaches `until`. Messages without the token are dropped.
  std::optional<Delivery> take(std::uint64_t until);

 private:
  void await(std::uint64_t until);
  void admit();
  void drop_a_silent_one();
  std::optional<Delivery> read(const Descriptor& visitor);

  Token token_;
  Descriptor listener_;
  std::vector<Descriptor> visitors_;  // connected, have not yet said anything
  std::size_t dropped_ = 0;           // the first is logged: a stranger must not fill the log either
};

enum class HandIn {
  done,
  crowded,  // too many descriptors or connections are on their way; take some and try again
  refused   // nobody listens there (any more)
};

/// Never blocks. `ticket` is from the peer's Inbox; without a descriptor only the note goes. Throws Error{system}.
HandIn hand_in(const Bytes& ticket, const Note&, const Descriptor&);

}  // namespace heddle
