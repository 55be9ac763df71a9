#include "transport/shm/messages.h"

#include "base/advice.h"
#include "base/random.h"
#include "base/strings.h"
#include "transport/shm/stage_budget.h"

namespace weightcast::transport::shm {
namespace {

constexpr uint32_t kMagic = 0x6d687377;  // "wshm"
constexpr uint8_t kVersion = 3;
constexpr size_t kMostText = 100;

void PutCookie(ByteWriter& out, const Cookie& cookie) {
  out.Put(cookie[0]);
  out.Put(cookie[1]);
}

Cookie GetCookie(ByteReader& in) {
  Cookie cookie{};
  cookie[0] = in.Get<uint64_t>();
  cookie[1] = in.Get<uint64_t>();
  return cookie;
}

}  // namespace

Status Malformed(std::string_view what) {
  return {Code::kProtocol, StrCat("a malformed shm ", what, kSameRelease)};
}

ByteWriter BeginMessage(MessageKind kind) {
  ByteWriter out;
  out.Put(kVersion);
  out.Put(static_cast<uint8_t>(kind));
  return out;
}

ByteReader MessageBody(std::string_view bytes, MessageKind kind) {
  const auto found = KindOf(bytes);
  if (!found.ok() || *found != kind) {
    ByteReader failed("");
    failed.Get<uint8_t>();
    return failed;
  }
  return ByteReader(bytes.substr(2));
}

Code GetCode(ByteReader& in) {
  const auto raw = in.Get<uint8_t>();
  return raw <= static_cast<uint8_t>(Code::kInternal) ? static_cast<Code>(raw) : Code::kInternal;
}

Cookie NewCookie() { return {RandomId(), RandomId()}; }

std::string Encode(const Invitation& invitation) {
  ByteWriter out;
  out.Put(kMagic);
  out.Put(kVersion);
  out.PutString(invitation.boot_id);
  out.PutString(invitation.name);
  PutCookie(out, invitation.cookie);
  return out.Take();
}

Result<Invitation> DecodeInvitation(std::string_view bytes) {
  ByteReader in(bytes);
  const auto magic = in.Get<uint32_t>();
  const auto version = in.Get<uint8_t>();
  Invitation invitation;
  invitation.boot_id = in.GetString(kMostText);
  invitation.name = in.GetString(kMostText);
  invitation.cookie = GetCookie(in);
  if (!in.AtEnd() || magic != kMagic || version != kVersion) return Malformed("invitation");
  return invitation;
}

std::string Encode(const Hello& message) {
  auto out = BeginMessage(MessageKind::kHello);
  PutCookie(out, message.cookie);
  out.Put(message.incarnation);
  out.Put(message.map_nonce);
  out.Put(message.copy_address);
  out.Put(message.copy_nonce);
  return out.Take();
}

std::string Encode(const Trial& message) {
  auto out = BeginMessage(MessageKind::kTrial);
  out.Put(message.map_echo);
  out.Put(message.copy_echo);
  return out.Take();
}

std::string Encode(const Verdict& message) {
  auto out = BeginMessage(MessageKind::kVerdict);
  out.Put(static_cast<uint8_t>(message.map_seen));
  out.Put(static_cast<uint8_t>(message.copy_seen));
  return out.Take();
}

std::string Encode(const WantRegion& message) {
  auto out = BeginMessage(MessageKind::kWantRegion);
  out.Put(message.id);
  out.Put(message.generation);
  return out.Take();
}

std::string Encode(const RegionReply& message) {
  auto out = BeginMessage(MessageKind::kRegion);
  out.Put(message.id);
  out.Put(message.generation);
  out.Put(static_cast<uint8_t>(message.code));
  out.Put(message.fd_offset);
  out.Put(message.length);
  return out.Take();
}

std::string Encode(const RingReply& message) {
  auto out = BeginMessage(MessageKind::kRing);
  out.Put(static_cast<uint8_t>(message.code));
  return out.Take();
}

std::string Encode(const WantStage& message) {
  auto out = BeginMessage(MessageKind::kWantStage);
  out.Put(message.most);
  return out.Take();
}

std::string Encode(const StageReply& message) {
  auto out = BeginMessage(MessageKind::kStage);
  out.Put(static_cast<uint8_t>(message.code));
  out.Put(message.length);
  return out.Take();
}

std::string Encode(const Bye&) { return BeginMessage(MessageKind::kBye).Take(); }
std::string Encode(const Bell&) { return BeginMessage(MessageKind::kBell).Take(); }

Result<MessageKind> KindOf(std::string_view bytes) {
  ByteReader in(bytes);
  const auto version = in.Get<uint8_t>();
  const auto kind = in.Get<uint8_t>();
  if (!in.ok() || version != kVersion || kind < static_cast<uint8_t>(MessageKind::kHello) ||
      kind > static_cast<uint8_t>(MessageKind::kStage)) {
    return Malformed("message");
  }
  return static_cast<MessageKind>(kind);
}

Result<Hello> DecodeHello(std::string_view bytes) {
  auto in = MessageBody(bytes, MessageKind::kHello);
  Hello message;
  message.cookie = GetCookie(in);
  message.incarnation = in.Get<uint64_t>();
  message.map_nonce = in.Get<uint64_t>();
  message.copy_address = in.Get<uint64_t>();
  message.copy_nonce = in.Get<uint64_t>();
  if (!in.AtEnd()) return Malformed("hello");
  return message;
}

Result<Trial> DecodeTrial(std::string_view bytes) {
  auto in = MessageBody(bytes, MessageKind::kTrial);
  Trial message;
  message.map_echo = in.Get<uint64_t>();
  message.copy_echo = in.Get<uint64_t>();
  if (!in.AtEnd()) return Malformed("trial");
  return message;
}

Result<Verdict> DecodeVerdict(std::string_view bytes) {
  auto in = MessageBody(bytes, MessageKind::kVerdict);
  Verdict message;
  message.map_seen = in.Get<uint8_t>() != 0;
  message.copy_seen = in.Get<uint8_t>() != 0;
  if (!in.AtEnd()) return Malformed("verdict");
  return message;
}

Result<WantRegion> DecodeWantRegion(std::string_view bytes) {
  auto in = MessageBody(bytes, MessageKind::kWantRegion);
  WantRegion message;
  message.id = in.Get<uint32_t>();
  message.generation = in.Get<uint32_t>();
  if (!in.AtEnd()) return Malformed("request for a region");
  return message;
}

Result<RegionReply> DecodeRegionReply(std::string_view bytes) {
  auto in = MessageBody(bytes, MessageKind::kRegion);
  RegionReply message;
  message.id = in.Get<uint32_t>();
  message.generation = in.Get<uint32_t>();
  message.code = GetCode(in);
  message.fd_offset = in.Get<uint64_t>();
  message.length = in.Get<uint64_t>();
  if (!in.AtEnd()) return Malformed("region");
  return message;
}

Result<RingReply> DecodeRingReply(std::string_view bytes) {
  auto in = MessageBody(bytes, MessageKind::kRing);
  RingReply message;
  message.code = GetCode(in);
  if (!in.AtEnd()) return Malformed("payload ring");
  return message;
}

Result<WantStage> DecodeWantStage(std::string_view bytes) {
  auto in = MessageBody(bytes, MessageKind::kWantStage);
  WantStage message;
  message.most = in.Get<uint64_t>();
  if (!in.AtEnd() || !IsStageLength(message.most)) return Malformed("request for a staging ring");
  return message;
}

Result<StageReply> DecodeStageReply(std::string_view bytes) {
  auto in = MessageBody(bytes, MessageKind::kStage);
  StageReply message;
  message.code = GetCode(in);
  message.length = in.Get<uint64_t>();
  const bool made = message.code == Code::kOk;
  if (!in.AtEnd() || (made && !IsStageLength(message.length))) return Malformed("staging ring");
  return message;
}

}  // namespace weightcast::transport::shm
