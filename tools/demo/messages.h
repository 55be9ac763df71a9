#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/common/codec.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// What a demo's process tells its parent, one datagram each.
struct DemoEvent {
  enum class Kind : uint8_t {
    kListening,  ///< Controller: text is its address.
    kReady,      ///< Worker: joined, its memory filled or free to be written.
    kCommitted,  ///< Trainer: `version` is committed; figures follow.
    kVerified,   ///< Inference rank: every byte of `version` is right.
    kFailed,     ///< It ends; text says why.
  };
  Kind kind = Kind::kFailed;
  int64_t version = 0;
  std::string text{};
  double seconds = 0;
  uint64_t bytes = 0;
  std::vector<uint64_t> sender_bytes{};       ///< By trainer rank; of many the slowest.
  std::vector<std::string> connection_map{};  ///< A line for each connection.
};
constexpr DemoEvent::Kind LastOf(DemoEvent::Kind) { return DemoEvent::Kind::kFailed; }
constexpr auto Fields(Is<DemoEvent> auto& m, auto&& visit) {
  return visit(F("kind", m.kind), F("version", m.version), F("text", m.text, protocol::Bytes{64 << 10}),
               F("seconds", m.seconds), F("bytes", m.bytes),
               F("sender_bytes", m.sender_bytes, List{protocol::kMaxWorkers}),
               F("connection_map", m.connection_map, protocol::kConnections));
}

/// What the parent tells: publish this version, or end (0).
struct DemoOrder {
  int64_t publish = 0;
};
constexpr auto Fields(Is<DemoOrder> auto& m, auto&& visit) { return visit(F("publish", m.publish)); }

/// One datagram over the pair of sockets between parent and child.
Status SendDatagram(int fd, std::string_view bytes);
/// The next one; nullopt when the other side has gone. Waits until `deadline`: kTimedOut.
Result<std::optional<std::string>> ReceiveDatagram(int fd, TimePoint deadline);

}  // namespace weightcast::tools
