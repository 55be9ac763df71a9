#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/types.h"

namespace weightcast::transport::tcp {

/// What a readiness event is about, in the 64 bits that epoll keeps for us. An event is a hint: its
/// object may be gone, and then nothing happens.
enum class KeyKind : uint8_t { kWake = 1, kTimer, kListener, kVisitor, kConnect, kLane, kDevice };

/// kVisitor: number. kConnect: link, lane and attempt. kLane: link and lane.
constexpr uint64_t MakeKey(KeyKind kind, uint64_t rest = 0) {
  return static_cast<uint64_t>(kind) << 56 | rest;
}
constexpr uint64_t MakeKey(KeyKind kind, LinkId link, uint32_t lane) {
  return MakeKey(kind, static_cast<uint64_t>(link) << 16 | static_cast<uint64_t>(lane) << 8);
}
constexpr KeyKind KindOf(uint64_t key) { return static_cast<KeyKind>(key >> 56); }
constexpr uint64_t NumberOf(uint64_t key) { return key & 0xffffffffffffffU; }
constexpr LinkId LinkOf(uint64_t key) { return static_cast<LinkId>(key >> 16 & 0xffffffffU); }
constexpr uint32_t LaneOf(uint64_t key) { return static_cast<uint32_t>(key >> 8 & 0xffU); }
constexpr size_t AttemptOf(uint64_t key) { return key & 0xffU; }

}  // namespace weightcast::transport::tcp
