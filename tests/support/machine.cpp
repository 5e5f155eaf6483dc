#include "support/machine.hpp"

#include <cstring>

#include "bootstrap/bootstrap.hpp"
#include "cpu/cpu_backend.hpp"
#include "memory/symmetric_memory.hpp"

namespace heddle::testing {
namespace {

class CpuMachine : public Machine {
 public:
  CpuMachine(Bootstrap& bootstrap, const MachineOptions& options)
      : memory_(make_heap(bootstrap, options.window_bytes, options.timeout)),
        backend_(DirectPort(memory_.view(), PeerView{}), 1) {}

  Backend& backend() override { return backend_; }
  void read(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void write(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }

 private:
  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  SymmetricMemory memory_;
  CpuBackend<DirectPort> backend_;
};

}  // namespace

std::unique_ptr<Machine> make_cpu_machine(Bootstrap& bootstrap, const MachineOptions& options) {
  return std::make_unique<CpuMachine>(bootstrap, options);
}

}  // namespace heddle::testing
