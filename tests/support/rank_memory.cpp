#include "support/rank_memory.hpp"

#include <cstring>

#include "protocol/backend.hpp"

namespace heddle::testing {
namespace {

thread_local RankMemory* of_thread = nullptr;

size_t span_of(const TensorView& view) {
  if (view.numel() == 0) return 0;
  int64_t last = 0;
  for (size_t i = 0; i < view.shape.size(); ++i) last += (view.dim(i) - 1) * view.stride(i);
  return static_cast<size_t>(last + 1) * size_of(view.dtype);
}

bool works_on_gpu() { return of_thread != nullptr && of_thread->backend().device().kind == DeviceKind::cuda; }

}  // namespace

RankMemory::RankMemory(Backend& backend) : backend_(backend) { of_thread = this; }

RankMemory::~RankMemory() {
  if (of_thread == this) of_thread = nullptr;
}

TensorView lend(const TensorView& view) {
  if (!view.is_set() || !works_on_gpu()) return view;
  Backend& backend = of_thread->backend();
  const size_t bytes = span_of(view);
  auto block = backend.take(bytes);
  backend.write(block.get(), view.data, bytes);
  TensorView lent = view;
  lent.data = block.get();
  lent.device = backend.device();
  of_thread->keep(std::move(block));
  return lent;
}

std::vector<std::byte> fetch(const TensorView& view) {
  std::vector<std::byte> bytes(span_of(view));
  if (bytes.empty()) return bytes;
  if (view.device.kind == DeviceKind::cpu) std::memcpy(bytes.data(), view.data, bytes.size());
  else of_thread->backend().read(bytes.data(), view.data, bytes.size());
  return bytes;
}

}  // namespace heddle::testing
