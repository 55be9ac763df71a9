#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "peertest/facts.h"
#include "weightcast/status.h"

/// What a host that tests and a host that serves say to each other: a question, then its answer, and then the
/// next question. Each is one JSON object in one frame of src/stream. They are small, so that they also pass
/// where packets of full size vanish.
namespace weightcast::peertest {

inline constexpr uint16_t kDefaultPort = 29751;
inline constexpr size_t kMostBody = size_t{16} << 10;
inline constexpr size_t kPieceBytes = 450;  ///< Of a report, in one answer.
inline constexpr size_t kMostReport = size_t{256} << 10;
inline constexpr auto kConversationLease = std::chrono::seconds(10);
inline constexpr uint32_t kMostPings = 20'000;
inline constexpr uint64_t kMostWrite = uint64_t{16} << 20;  ///< Bytes of one transfer.
inline constexpr double kMostSeconds = 10;                  ///< Of one write.
inline constexpr double kMostPlanSeconds = 4;

/// What a test measures.
struct TestPlan {
  double seconds = 0.5;  ///< Of each measurement.
  bool all_sizes = true;
  bool classes = true;
};

/// Where an endpoint of a test is, and what it has.
struct LinkPlace {
  std::vector<std::string> addresses = {};
  uint64_t incarnation = 0;
  std::string descriptor = {};  ///< Of its region, hexadecimal.
};

// --- Questions
/// `peer`: the address at which the asking host reached the other.
struct AskHello {
  HostReport report = {};
  std::string peer = {};
};
struct AskTime {};
struct AskCounters {};
/// Opens a probe (transport/verbs/device_probe.h); the others use it.
struct AskDevice {};
struct AskDeviceMeet {
  std::string place = {};  ///< Of the asking host's probe, hexadecimal.
};
struct AskDevicePong {
  uint32_t count = 0;
};
/// Takes the one place for a test. `address`: where the asking host was seen to reach the other.
struct AskBegin {
  std::string address = {};
};
struct AskReach {
  std::vector<std::string> addresses = {};  ///< Of the asking host only.
};
struct AskOpen {
  std::string transport = {};
  std::string key = {};              ///< That both endpoints prove, hexadecimal.
  int64_t traffic_class = kUnknown;  ///< Of the packets sent; kUnknown: by the host's setting.
};
struct AskMeet {
  LinkPlace place = {};
  bool connect = false;  ///< The other side connects; else it waits.
};
struct AskPong {
  uint32_t count = 0;
};
struct AskWrite {
  uint64_t bytes = 0;
  double seconds = 0;
};
struct AskShut {};
struct AskEnd {};
/// Has the other host test a third one.
struct AskOrder {
  std::string target = {};
  TestPlan plan = {};
};
struct AskPiece {
  uint64_t from = 0;
};
using Request =
    std::variant<AskHello, AskTime, AskBegin, AskReach, AskOpen, AskMeet, AskPong, AskWrite, AskShut, AskEnd,
                 AskOrder, AskPiece, AskCounters, AskDevice, AskDeviceMeet, AskDevicePong>;

// --- Answers
struct Done {};
struct Hello {
  HostReport report = {};
};
struct Time {
  double unix_seconds = 0;
};
/// Where UDP packets that carry the key are answered.
struct Echo {
  std::string error = {};
  uint32_t port = 0;
  std::string key = {};  ///< Hexadecimal.
};
struct Reached {
  std::vector<std::string> errors = {};
};
struct Opened {
  LinkPlace place = {};
};
struct Wrote {
  Rate rate = {};
};
struct Counters {
  std::vector<PortCount> ports = {};
};
struct DevicePlace {
  std::string place = {};  ///< Hexadecimal.
};
struct Ordered {
  uint64_t bytes = 0;  ///< Of the report.
};
struct ReportPiece {
  std::string text = {};
};
using Reply = std::variant<Done, Hello, Time, Echo, Reached, Opened, Wrote, Ordered, ReportPiece, Counters,
                           DevicePlace>;

std::string Encode(const Request& request);
/// Errors: kProtocol. Texts are printable and short, numbers lie within the limits above.
Result<Request> DecodeRequest(std::string_view body);
std::string Encode(const Result<Reply>& reply);
/// The error that was sent, or kProtocol.
Result<Reply> DecodeReply(std::string_view body);

std::string Encode(const PeerFacts& facts);
Result<PeerFacts> DecodeFacts(std::string_view json);

}  // namespace weightcast::peertest
