#include <heddle/heddle.hpp>

#include <utility>

// One rank sends one token to its own experts and gets it back.
int main() {
  auto ranks = heddle::in_process(1, std::chrono::seconds(10));
  heddle::Buffer buffer(std::move(ranks[0]), {.experts = 4, .max_tokens = 1});
  int ids[] = {2, 0};
  float row[] = {1, 2, 3, 4};
  const heddle::Plan plan = buffer.plan(heddle::view_of(ids, heddle::DType::i32, {1, 2}));
  const heddle::Received received = buffer.dispatch(plan, {.x = heddle::view_of(row, heddle::DType::f32, {1, 4})});
  const heddle::Combined combined = buffer.combine(received.handle, {.x = received.x.view});
  return combined.x.data<float>()[3] == 4 ? 0 : 1;
}
