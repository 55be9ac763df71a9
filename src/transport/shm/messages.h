#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "memory/memory.h"
#include "weightcast/status.h"

/// The blobs that the endpoint carries and the messages on a link's Unix socket. The parsers are pure
/// functions over hostile bytes: kProtocol for everything that the encoders do not write.
namespace weightcast::transport::shm {

/// Shows that whoever presents it has seen the blob that it came in.
using Cookie = std::array<uint64_t, 2>;
Cookie NewCookie();

/// Initiator's offer and responder's answer. The initiator's `name` is empty: it connects.
struct Invitation {
  std::string boot_id;  ///< Different: surely another kernel. Equal: nothing is proven yet.
  std::string name;     ///< Abstract Unix name of the responder's listener.
  Cookie cookie{};
};
std::string Encode(const Invitation& invitation);
Result<Invitation> DecodeInvitation(std::string_view bytes);

enum class MessageKind : uint8_t {
  kHello = 1,  ///< With descriptors: inbox, fence page.
  kTrial,
  kVerdict,
  kWantRegion,
  kRegion,  ///< With the region's descriptor where `code` is kOk.
  kRing,    ///< With the sender's payload ring where `code` is kOk.
  kBye,     ///< The sender will touch nothing of ours any more.
  kBell,    ///< Nothing but a wake-up.
  // Device memory: source_messages.h.
  kWantSource,
  kSourceOffer,
  kSourceHandles,
  kSourceVerdict,
  kDrop,
  kDropped,
  // Staging.
  kWantStage,
  kStage,  ///< With the sender's staging ring where `code` is kOk.
};

struct Hello {
  Cookie cookie{};              ///< The receiver's.
  Incarnation incarnation = 0;  ///< The sender's.
  uint64_t map_nonce = 0;       ///< Stands in the inbox that comes along.
  uint64_t copy_address = 0;    ///< Of the sender's TrialCell.
  uint64_t copy_nonce = 0;      ///< Stands there.
};
/// What the sender has tried on the receiver's memory: the receiver looks whether it arrived.
struct Trial {
  uint64_t map_echo = 0;
  uint64_t copy_echo = 0;  ///< 0: the copy was refused.
};
struct Verdict {
  bool map_seen = false;
  bool copy_seen = false;
};
struct WantRegion {
  uint32_t id = 0;
  uint32_t generation = 0;
};
struct RegionReply {
  uint32_t id = 0;
  uint32_t generation = 0;
  Code code = Code::kOk;
  uint64_t fd_offset = 0;
  uint64_t length = 0;
};
struct RingReply {
  Code code = Code::kOk;
};
/// Make me a staging ring to write into, of at most so many bytes.
struct WantStage {
  uint64_t most = 0;
};
struct StageReply {
  Code code = Code::kOk;
  uint64_t length = 0;
};
struct Bye {};
struct Bell {};

std::string Encode(const Hello& message);
std::string Encode(const Trial& message);
std::string Encode(const Verdict& message);
std::string Encode(const WantRegion& message);
std::string Encode(const RegionReply& message);
std::string Encode(const RingReply& message);
std::string Encode(const WantStage& message);
std::string Encode(const StageReply& message);
std::string Encode(const Bye& message);
std::string Encode(const Bell& message);

// --- For all messages
ByteWriter BeginMessage(MessageKind kind);
/// Past the head of a message of this kind; a reader that is not ok otherwise.
ByteReader MessageBody(std::string_view bytes, MessageKind kind);
/// A code from outside; anything unknown becomes kInternal.
Code GetCode(ByteReader& in);
Status Malformed(std::string_view what);

/// The kind of a message of this protocol version.
Result<MessageKind> KindOf(std::string_view bytes);
Result<Hello> DecodeHello(std::string_view bytes);
Result<Trial> DecodeTrial(std::string_view bytes);
Result<Verdict> DecodeVerdict(std::string_view bytes);
Result<WantRegion> DecodeWantRegion(std::string_view bytes);
Result<RegionReply> DecodeRegionReply(std::string_view bytes);
Result<RingReply> DecodeRingReply(std::string_view bytes);
Result<WantStage> DecodeWantStage(std::string_view bytes);
Result<StageReply> DecodeStageReply(std::string_view bytes);

}  // namespace weightcast::transport::shm
