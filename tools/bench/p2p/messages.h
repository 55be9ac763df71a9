#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory/memory.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::tools {

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

/// How another party finds this one.
struct PartyHello {
  uint32_t number = 0;
  Incarnation incarnation = 0;
  std::string descriptor{};  ///< Of its memory.
  std::vector<std::string> addresses{};
  std::string metadata{};  ///< For messages; empty: it does not exchange any.
  int32_t device = -1;     ///< Whose memory it has; -1: the host's.
};

struct PartyConnect {
  PartyHello peer;
  bool connects = false;  ///< Otherwise it waits for the peer.
};

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

std::string Encode(const PartySetup& setup);
std::string Encode(const PartyHello& hello);
std::string Encode(const PartyConnect& order);
std::string Encode(Ask ask, const PartyWork& work);
std::string Encode(const PartyTimes& times);
/// These take what stands after the first byte. Errors: kProtocol.
Result<PartySetup> DecodeSetup(std::string_view bytes);
Result<PartyHello> DecodeHello(std::string_view bytes);
Result<PartyConnect> DecodeConnect(std::string_view bytes);
Result<PartyWork> DecodeWork(std::string_view bytes);
Result<PartyTimes> DecodeTimes(std::string_view bytes);

}  // namespace weightcast::tools
