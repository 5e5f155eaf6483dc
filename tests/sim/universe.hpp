// All that is outside of the ranks: their windows, what is on its way between them, who runs next, and the time. Ranks are
// fibers; a put lands when somebody chooses that; time moves only when nothing else can, so that a deadline passes only for
// a rank that waits for what cannot come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace heddle::testing {

/// One thing that may happen next.
struct Action {
  enum class What { run, bytes, count };
  What what = What::run;
  int rank = 0;  // who runs, or whose put lands
  int peer = 0;  // where it lands
  bool has_bytes = false;
};

class Choices {
 public:
  virtual ~Choices() = default;
  virtual size_t choose(const std::vector<Action>&) = 0;
};

struct UniverseSettings {
  int ranks = 2;
  int64_t window_bytes = 0;
  int64_t heap_bytes = 0;      // of each rank (I14)
  uint64_t timeout_ns = 1000;  // of the buffers: how fast time moves
  bool direct = false;         // puts are stores into the peer's memory, and one add announces many, as in DirectPort
  bool halves = false;         // a put's bytes land some time before its count
  bool timeless = false;       // no time passes: who waits for what cannot come is an error
  uint64_t pauses = 0;         // seed of pauses between two waits; 0: none
};

/// A rank that was given up: leaves its body.
struct Gone {};

class Universe {
 public:
  explicit Universe(const UniverseSettings&);
  /// Unwinds what still waits.
  ~Universe();

  void start(const std::function<void(int rank)>& body);
  /// What may happen next; empty: all ranks have ended or died, or trouble() says what is wrong.
  const std::vector<Action>& actions();
  void perform(size_t action);
  /// From start to end.
  void run(const std::function<void(int rank)>& body, Choices&);
  const std::string& trouble() const;
  /// The main stack may read what ranks wrote.
  void join();

  /// Hash of all that the future depends on. `watch` gives a rank's own part: nothing of it may be an address.
  uint64_t hash() const;
  void watch(int rank, std::function<uint64_t()> local_state);

  // For ports, on the rank's own stack.
  std::byte* window(int rank) const;
  std::byte* heap(int rank) const;
  bool is_direct() const;
  struct Place {
    int peer = 0;
    int segment = 0;
    int64_t offset = 0;
  };
  std::byte* stage(int rank, const Place&, int64_t bytes);
  void put(int rank, const Place&, const std::byte* staged, int64_t bytes, int64_t counter);
  void add(int rank, int peer, int64_t counter, int64_t n);
  void drain(int rank);
  uint64_t now(int rank);
  void relax(int rank);

  // For the ranks' bodies.
  void sleep(int rank, uint64_t ns);
  /// The rank stops after so many more puts and adds.
  void doom(int rank, int puts);
  void die(int rank);
  bool is_dead(int rank) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace heddle::testing
