#include "bootstrap/frame.hpp"

#include "base/error.hpp"

#include <asio/buffer.hpp>
#include <asio/read.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>

#include <array>

namespace heddle {
namespace {

struct Head {
  std::uint64_t kind;
  std::uint64_t length;
};

}  // namespace

asio::awaitable<Frame> read_frame(asio::ip::tcp::socket& socket, std::uint64_t limit) {
  Head head;
  co_await asio::async_read(socket, asio::buffer(&head, sizeof head), asio::use_awaitable);
  if (head.kind > static_cast<std::uint64_t>(FrameKind::gave_up) || head.length > limit) {
    fail(ErrorCode::mismatch, "frame of kind {} and {} bytes, at most {} are allowed", head.kind, head.length, limit);
  }
  Frame frame{static_cast<FrameKind>(head.kind), Bytes(head.length)};
  co_await asio::async_read(socket, asio::buffer(frame.body), asio::use_awaitable);
  co_return frame;
}

asio::awaitable<void> write_frame(asio::ip::tcp::socket& socket, const Frame& frame) {
  const Head head{static_cast<std::uint64_t>(frame.kind), frame.body.size()};
  const std::array<asio::const_buffer, 2> parts = {asio::buffer(&head, sizeof head), asio::buffer(frame.body)};
  co_await asio::async_write(socket, parts, asio::use_awaitable);
}

}  // namespace heddle
