#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "p2p/metadata.h"
#include "transport/types.h"
#include "weightcast/status.h"

// What engines say to each other, one notice each (docs/p2p.md).
namespace weightcast::p2p {

/// Bytes of a memory of the one who says it.
struct Slice {
  uint64_t memory = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  friend bool operator==(const Slice&, const Slice&) = default;
};

struct Open {
  uint64_t channel = 0;
  Gpu gpu;
  friend bool operator==(const Open&, const Open&) = default;
};
struct Close {
  uint64_t channel = 0;
  friend bool operator==(const Close&, const Close&) = default;
};
struct Describe {
  uint64_t memory = 0;
  Status reason{};         ///< Not ok: there is no such memory.
  std::string descriptor;  ///< Of its region.
  friend bool operator==(const Describe&, const Describe&) = default;
};
struct Want {
  uint64_t memory = 0;
  friend bool operator==(const Want&, const Want&) = default;
};
struct Forget {
  uint64_t memory = 0;
  friend bool operator==(const Forget&, const Forget&) = default;
};
struct Offer {
  static constexpr size_t kMaxSlices = 1024;  ///< Of one message.
  uint64_t channel = 0;
  uint64_t number = 0;
  transport::GrantName grant;
  bool more = false;  ///< Further slices come in the next Offer of this number.
  std::vector<Slice> slices;
  friend bool operator==(const Offer&, const Offer&) = default;
};
struct Withdraw {
  uint64_t channel = 0;
  uint64_t number = 0;
  Status reason;  ///< Not ok.
  friend bool operator==(const Withdraw&, const Withdraw&) = default;
};
struct Abandon {
  uint64_t channel = 0;
  uint64_t number = 0;
  Status reason;  ///< Not ok.
  friend bool operator==(const Abandon&, const Abandon&) = default;
};

struct Finished {
  uint64_t channel = 0;
  uint64_t number = 0;
  friend bool operator==(const Finished&, const Finished&) = default;
};
struct Received {
  uint64_t channel = 0;
  uint64_t number = 0;
  friend bool operator==(const Received&, const Received&) = default;
};

using Message =
    std::variant<Open, Close, Describe, Want, Forget, Offer, Withdraw, Abandon, Finished, Received>;
/// At most Connection::kMaxNotice bytes; long reasons are cut.
std::string Encode(const Message& message);
/// kProtocol: malformed. What it gives is within the limits; its text is printable.
Result<Message> Decode(std::string_view bytes);

}  // namespace weightcast::p2p
