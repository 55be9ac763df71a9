#include "tools/demo/messages.h"

#include <poll.h>
#include <sys/socket.h>

#include <bit>
#include <cerrno>

#include "base/bytes.h"
#include "base/socket.h"
#include "base/strings.h"

namespace weightcast::tools {
namespace {

constexpr size_t kMaxText = 64 << 10;
constexpr uint32_t kMaxItems = 1 << 16;

template <typename T>
Result<T> WholeDemo(const ByteReader& reader, size_t bytes, T value) {
  if (reader.AtEnd()) return value;
  return Status(Code::kProtocol,
                StrCat("a message of ", bytes, " bytes between the demo's processes is ",
                       reader.ok() ? "too long" : "too short", "; please report this as a bug"));
}

}  // namespace

std::string Encode(const DemoEvent& event) {
  ByteWriter out;
  out.Put(static_cast<uint8_t>(event.kind));
  out.Put(event.version);
  out.PutString(event.text);
  out.Put(std::bit_cast<uint64_t>(event.seconds));
  out.Put(event.bytes);
  out.Put(static_cast<uint32_t>(event.sender_bytes.size()));
  for (const uint64_t bytes : event.sender_bytes) out.Put(bytes);
  out.Put(static_cast<uint32_t>(event.connection_map.size()));
  for (const std::string& line : event.connection_map) out.PutString(line);
  return out.Take();
}

Result<DemoEvent> DecodeEvent(std::string_view bytes) {
  ByteReader in(bytes);
  DemoEvent event;
  event.kind = static_cast<DemoEvent::Kind>(in.Get<uint8_t>());
  event.version = in.Get<int64_t>();
  event.text = in.GetString(kMaxText);
  event.seconds = std::bit_cast<double>(in.Get<uint64_t>());
  event.bytes = in.Get<uint64_t>();
  for (auto left = std::min(in.Get<uint32_t>(), kMaxItems); left > 0 && in.ok(); --left)
    event.sender_bytes.push_back(in.Get<uint64_t>());
  for (auto left = std::min(in.Get<uint32_t>(), kMaxItems); left > 0 && in.ok(); --left)
    event.connection_map.emplace_back(in.GetString(kMaxText));
  return WholeDemo(in, bytes.size(), std::move(event));
}

std::string Encode(const DemoOrder& order) {
  ByteWriter out;
  out.Put(order.publish);
  return out.Take();
}

Result<DemoOrder> DecodeOrder(std::string_view bytes) {
  ByteReader in(bytes);
  DemoOrder order;
  order.publish = in.Get<int64_t>();
  return WholeDemo(in, bytes.size(), order);
}

Status SendDatagram(int fd, std::string_view bytes) {
  for (;;) {
    if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0) return Status::Ok();
    if (errno == EINTR) continue;
    return {Code::kUnavailable, StrCat("another process of the demo has exited: ", ErrnoText(errno),
                                       "; see the logs of the demo")};
  }
}

Result<std::optional<std::string>> ReceiveDatagram(int fd, TimePoint deadline) {
  if (!WaitFor(fd, POLLIN, deadline))
    return Status(Code::kTimedOut,
                  "no message has come from another process of the demo; see the logs of the demo");
  std::string bytes(256 << 10, '\0');
  for (;;) {
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::optional<std::string>();
    bytes.resize(static_cast<size_t>(got));
    return std::optional<std::string>(std::move(bytes));
  }
}

}  // namespace weightcast::tools
