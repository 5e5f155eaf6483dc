#include "support/machine.hpp"

#include <cstring>
#include <vector>

#include "bootstrap/bootstrap.hpp"
#include "cpu/cpu_backend.hpp"
#include "layout/carver.hpp"
#include "memory/symmetric_memory.hpp"

namespace heddle::testing {
namespace {

class CpuMachine : public Machine {
 public:
  CpuMachine(Bootstrap& bootstrap, const MachineOptions& options)
      : memory_(make_heap(bootstrap, options.window_bytes, options.timeout)),
        held_reader_(bootstrap.rank() == options.held_writer ? options.held_reader : -1),
        held_(held_reader_ < 0 ? 0 : options.window_bytes / sizeof(Line)), backend_(DirectPort(windows(), PeerView{}), 1) {}

  Backend& backend() override { return backend_; }
  void read(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void write(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void deliver(int64_t offset, int64_t bytes) override {
    copy(memory_.view().peer(held_reader_) + offset, held() + offset, static_cast<size_t>(bytes));
  }
  void deliver_counter(int64_t offset) override {
    store_release(reinterpret_cast<uint64_t*>(memory_.view().peer(held_reader_) + offset),
                  load_acquire(reinterpret_cast<const uint64_t*>(held() + offset)));
  }

 private:
  struct alignas(kCellAlign) Line {
    std::byte bytes[kCellAlign];
  };

  std::byte* held() { return held_.data()->bytes; }
  PeerView windows() {
    PeerView view = memory_.view();
    if (held_reader_ >= 0) view.windows[held_reader_] = held();
    return view;
  }
  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  SymmetricMemory memory_;
  int held_reader_;
  std::vector<Line> held_;
  CpuBackend<DirectPort> backend_;
};

}  // namespace

std::unique_ptr<Machine> make_cpu_machine(Bootstrap& bootstrap, const MachineOptions& options) {
  return std::make_unique<CpuMachine>(bootstrap, options);
}

}  // namespace heddle::testing
