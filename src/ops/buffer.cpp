#include <heddle/buffer.hpp>

#include "memory/heap_hooks.hpp"
#include "ops/calls.hpp"
#include "ops/connect.hpp"

namespace heddle {
namespace {

TensorView words(const PlanData& plan, const void* data, int64_t rows, DType dtype = DType::i32) {
  TensorView view = view_of(const_cast<void*>(data), dtype, {rows});
  view.device = plan.device;
  return view;
}

TensorView table(const PlanData& plan, const void* data, int64_t rows, int64_t columns, DType dtype = DType::i32) {
  TensorView view = view_of(const_cast<void*>(data), dtype, {rows, columns});
  view.device = plan.device;
  return view;
}

}  // namespace

int Plan::tokens() const { return data_->view.tokens; }
int Plan::topk() const { return data_->view.topk; }
TensorView Plan::ids() const { return table(*data_, data_->view.ids, tokens(), topk()); }
TensorView Plan::is_token_in_rank() const {
  return table(*data_, data_->view.in_rank, tokens(), data_->topo.world, DType::u8);
}
TensorView Plan::num_tokens_per_rank() const { return words(*data_, data_->view.per_rank, data_->topo.world); }
TensorView Plan::num_tokens_per_expert() const { return words(*data_, data_->view.pairs, data_->topo.experts); }
TensorView Plan::num_rows_per_expert() const { return words(*data_, data_->view.rows, data_->topo.experts); }

Plan Handle::plan() const { return PlanAccess::make(route->plan); }
int Handle::num_received() const { return static_cast<int>(route->num_received); }
TensorView Handle::recv_offset() const {
  return words(*route->plan, route->view.recv_offset, route->plan->topo.world + 1);
}
TensorView Handle::recv_token() const { return words(*route->plan, route->view.recv_token, num_received()); }
TensorView Handle::source_tokens() const {
  return words(*route->plan, route->view.source_tokens, route->plan->topo.world);
}
TensorView Handle::row_of() const {
  if (route->view.row_of == nullptr) return {};
  return table(*route->plan, route->view.row_of, num_received(), route->plan->view.topk);
}
TensorView Handle::recv_ids() const {
  return table(*route->plan, route->view.recv_ids, num_received(), route->plan->view.topk);
}
TensorView Handle::recv_weights() const {
  return table(*route->plan, route->view.recv_weights, num_received(), route->plan->view.topk, DType::f32);
}
TensorView Handle::status() const {
  return words(*route->plan, route->view.status, route->plan->topo.world, DType::u8);
}

Buffer::Buffer(std::shared_ptr<Bootstrap> bootstrap, Config config)
    : Buffer(connect(*bootstrap, config)) {}
Buffer::Buffer(BufferParts parts) : calls_(std::make_shared<Calls>(std::move(parts))) {}
Buffer::~Buffer() {
  if (calls_) calls_->destroy_quietly();  // hooks may keep it alive for a moment
}
Buffer::Buffer(Buffer&&) noexcept = default;
Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other && calls_) calls_->destroy_quietly();
  calls_ = std::move(other.calls_);
  return *this;
}

const Topology& Buffer::topology() const { return calls_->topology(); }
const Config& Buffer::config() const { return calls_->config(); }
const std::string& Buffer::windows() const { return calls_->windows(); }
const std::vector<std::string>& Buffer::paths() const { return calls_->paths(); }

Plan Buffer::plan(const TensorView& ids, const Placement& on) { return calls_->plan(ids, on); }
Reach Buffer::reach(const TensorView& ids, const Placement& on) { return calls_->reach(ids, on); }
Plan Buffer::plan_from_rank_map(const TensorView& map, const Placement& on) {
  return calls_->plan_from_rank_map(map, on);
}

Handle Buffer::handle(const Plan& plan, const RouteTensors& tensors, const Placement& on) {
  return calls_->handle(plan, tensors, on);
}

Received Buffer::dispatch(const Plan& plan, const DispatchInput& input, const DispatchOptions& options) {
  return calls_->dispatch(plan, input, options);
}
Received Buffer::dispatch(const TensorView& ids, const DispatchInput& input, const DispatchOptions& options) {
  return calls_->dispatch(ids, input, options);
}
Received Buffer::dispatch(const Handle& handle, const DispatchInput& input, DispatchOptions options) {
  return calls_->dispatch_again(handle, input, options);
}
Split<Received> Buffer::dispatch_send(const Plan& plan, const DispatchInput& input, const DispatchOptions& options) {
  return calls_->dispatch_send(plan, input, options);
}
Split<Received> Buffer::dispatch_send(const TensorView& ids, const DispatchInput& input, const DispatchOptions& options) {
  return calls_->dispatch_send(ids, input, options);
}
Combined Buffer::combine(const Handle& handle, const CombineInput& input, const CombineOptions& options) {
  return calls_->combine(handle, input, options);
}
Split<Combined> Buffer::combine_send(const Handle& handle, const CombineInput& input, const CombineOptions& options) {
  return calls_->combine_send(handle, input, options);
}

void Buffer::mask(int rank) { calls_->mask(rank); }
std::vector<int> Buffer::masked() const { return calls_->masked(); }
void Buffer::reset(std::vector<int> members) { calls_->reset(members); }
void Buffer::refuse_dispatch(std::string_view argument) { calls_->refuse(Kind::dispatch, argument); }
void Buffer::refuse_combine(std::string_view argument) { calls_->refuse(Kind::combine, argument); }
void Buffer::interrupt() { calls_->interrupt(); }
void Buffer::destroy() { calls_->destroy(); }
bool Buffer::is_destroyed() const { return calls_->is_destroyed(); }
bool Buffer::has_heap() const { return calls_->parts().heap_pool != nullptr; }
std::shared_ptr<void> Buffer::use_heap() {
  const auto& pool = calls_->parts().heap_pool;
  return pool == nullptr ? nullptr : std::make_shared<HeapOfThread>(pool);
}

void Buffer::set_allocator(Allocate allocate) { calls_->set_allocator(std::move(allocate)); }
Metrics Buffer::metrics() const { return calls_->metrics(); }

}  // namespace heddle
