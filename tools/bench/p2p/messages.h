#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory/memory.h"
#include "tools/common/codec.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::tools {

inline constexpr size_t kMostDevices = 1024;
inline constexpr size_t kMostTransfers = size_t{1} << 28;  ///< Of one round.

/// What a party of the benchmark is asked for, the first byte of each message.
enum class Ask : uint8_t {
  kSetUp,  ///< PartySetup → PartyHello
  kMeet,   ///< PartyConnect → nothing
  kFill,   ///< PartyWork → nothing: new data where transfers read
  kRun,    ///< PartyWork → PartyTimes
  kCheck,  ///< PartyWork → nothing: reads once what has come over
};

struct PartySetup {
  std::string transport;
  std::string memory;
  uint64_t bytes = 0;
  uint32_t number = 0;              ///< Among all parties; chooses its core.
  bool messages = false;            ///< It is to send or receive too.
  std::vector<uint32_t> devices{};  ///< For memory of devices, in turn by number; empty: its own choice.
};
constexpr auto Fields(Is<PartySetup> auto& m, auto&& visit) {
  return visit(F("transport", m.transport, protocol::Name{}), F("memory", m.memory, protocol::Name{}),
               F("bytes", m.bytes), F("number", m.number), F("messages", m.messages),
               F("devices", m.devices, List{kMostDevices}));
}

/// How another party finds this one.
struct PartyHello {
  uint32_t number = 0;
  Incarnation incarnation = 0;
  std::string descriptor{};  ///< Of its memory.
  std::vector<std::string> addresses{};
  std::string metadata{};  ///< For messages; empty: it does not exchange any.
  int32_t device = -1;     ///< Whose memory it has; -1: the host's.
};
constexpr auto Fields(Is<PartyHello> auto& m, auto&& visit) {
  return visit(F("number", m.number), F("incarnation", m.incarnation, protocol::Fixed{}),
               F("descriptor", m.descriptor, protocol::Bytes{64 << 10}),
               F("addresses", m.addresses, protocol::kAddresses),
               F("metadata", m.metadata, protocol::Bytes{4096}), F("device", m.device));
}

struct PartyConnect {
  PartyHello peer;
  bool connects = false;  ///< Otherwise it waits for the peer.
};
constexpr auto Fields(Is<PartyConnect> auto& m, auto&& visit) {
  return visit(F("peer", m.peer), F("connects", m.connects));
}

/// One round: `slots` transfers of the same kind, each with bytes of its own.
struct PartyWork {
  std::string op;
  uint64_t piece_bytes = 0;
  uint64_t iovs = 1;
  uint64_t slots = 1;
  uint64_t repeats = 1;  ///< Of all slots.
  uint64_t from = 0;     ///< Where the source begins in its party's memory.
  uint64_t to = 0;       ///< Where the target does.
  uint64_t seed = 0;     ///< Of the bytes.
  int64_t start = 0;     ///< Nanoseconds of the common clock; 0: at once.

  [[nodiscard]] uint64_t bytes() const { return piece_bytes * iovs; }
  /// Bytes between the beginnings of two slots. Pieces lie twice their length apart.
  [[nodiscard]] uint64_t stride() const { return ((iovs == 1 ? piece_bytes : 2 * bytes()) + 63) / 64 * 64; }
};
constexpr auto Fields(Is<PartyWork> auto& m, auto&& visit) {
  return visit(F("op", m.op, protocol::Name{}), F("piece_bytes", m.piece_bytes), F("iovs", m.iovs),
               F("slots", m.slots), F("repeats", m.repeats), F("from", m.from), F("to", m.to),
               F("seed", m.seed), F("start", m.start));
}

/// What the other party does while one sends pings or signals. nullopt: nothing.
std::optional<std::string_view> AnswerTo(std::string_view op);
inline constexpr uint64_t kMostPing = 1024;  ///< Bytes.
/// Whether transfers like these can be pings and signals, whose last 8 bytes count them.
bool IsPing(uint64_t piece_bytes, uint64_t iovs);

/// Of this host's clock, as PartyTimes and PartyWork have it.
inline int64_t NowNanoseconds() { return Clock::now().time_since_epoch().count(); }

struct PartyTimes {
  int64_t begin = 0;  ///< Nanoseconds of this host's clock.
  int64_t end = 0;
  std::vector<int64_t> transfers{};  ///< Nanoseconds of each.
};
constexpr auto Fields(Is<PartyTimes> auto& m, auto&& visit) {
  return visit(F("begin", m.begin), F("end", m.end), F("transfers", m.transfers, List{kMostTransfers}));
}

/// The message that asks a party for this; its answer is the struct alone.
std::string Encode(Ask ask, const protocol::HasFields auto& message) {
  return static_cast<char>(ask) + EncodeStruct(message);
}

}  // namespace weightcast::tools
