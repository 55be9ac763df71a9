#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "endpoint/message.h"

namespace weightcast::endpoint {

inline constexpr size_t kMaxTransports = 16;
inline constexpr size_t kMaxTransportName = 32;
inline constexpr size_t kMaxBlob = 4096;
inline constexpr size_t kMaxNotice = 32 << 10;

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
