#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "endpoint/transfers/descriptor.h"
#include "weightcast/status.h"

namespace weightcast::endpoint {

// What endpoints say to each other over a control channel: docs/wire.md, "handshake". Parsers are pure
// functions of hostile bytes; whatever they give lies within the limits below.

enum class MessageType : uint8_t {
  kHello = 1,
  kProof = 2,
  kVerdict = 3,
  kOffers = 16,
  kAnswers = 17,
  kPath = 18,
  kChosen = 19,
  kHeartbeat = 20,
  kShutdown = 21,
  kNotice = 22,
  kCredit = 23,
};

struct Message {
  MessageType type{};
  std::string payload;
};

inline constexpr uint16_t kProtocolVersion = 2;
inline constexpr size_t kMaxName = 256;  ///< Job, role, engine.
inline constexpr size_t kMaxReason = 1024;
inline constexpr size_t kMaxBlob = 4096;
inline constexpr size_t kMaxNotice = 32 << 10;

/// kVerdict and kShutdown: an outcome with its reason. The form is the same in all protocol versions.
std::string EncodeOutcome(const Status& status);
/// The text is made printable. Nothing when malformed.
std::optional<Status> ParseOutcome(std::string_view payload);

/// For text from a peer that is shown to a person: unprintable bytes become '?', and it ends at `limit`.
std::string Printable(std::string_view text, size_t limit = kMaxReason);

/// One transport in kOffers or kAnswers.
struct PathOffer {
  std::string transport;
  bool open = false;
  std::string blob;  ///< The transport's offer or answer; why not, if it is not open.
  friend bool operator==(const PathOffer&, const PathOffer&) = default;
};
std::string EncodeOffers(const std::vector<PathOffer>& offers);
/// Names are distinct and not empty; reasons are printable. Nothing when malformed.
std::optional<std::vector<PathOffer>> ParseOffers(std::string_view payload);

/// kPath: the responder's end of an offered path is ready, or will never be.
struct PathNotice {
  uint8_t index = 0;
  bool ready = false;
  std::string reason;
  friend bool operator==(const PathNotice&, const PathNotice&) = default;
};
std::string EncodePath(const PathNotice& notice);
std::optional<PathNotice> ParsePath(std::string_view payload);

std::string EncodeChosen(uint8_t index);
std::optional<uint8_t> ParseChosen(std::string_view payload);

/// kCredit: the cost of all notices that were taken since the connection began.
std::string EncodeCredit(uint64_t taken);
std::optional<uint64_t> ParseCredit(std::string_view payload);

}  // namespace weightcast::endpoint
