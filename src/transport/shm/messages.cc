#include "transport/shm/messages.h"

#include "base/random.h"
#include "base/strings.h"
#include "transport/other_release.h"
#include "transport/shm/stage_budget.h"

namespace weightcast::transport::shm {
namespace {

constexpr uint32_t kMagic = 0x6d687377;  // "wshm"
constexpr size_t kMostText = 100;

}  // namespace

Status Malformed(std::string_view what) { return OtherRelease(StrCat("a malformed shm ", what)); }

FieldWriter::FieldWriter(MessageKind kind) {
  Put(kProtocolVersion);
  Put(kind);
}

Cookie NewCookie() { return {RandomId(), RandomId()}; }

std::string Encode(const Invitation& invitation) {
  ByteWriter out;
  out.Put(kMagic);
  out.Put(kProtocolVersion);
  out.PutString(invitation.boot_id);
  out.PutString(invitation.name);
  for (const uint64_t half : invitation.cookie) out.Put(half);
  return out.Take();
}

Result<Invitation> DecodeInvitation(std::string_view bytes) {
  ByteReader in(bytes);
  const auto magic = in.Get<uint32_t>();
  const auto version = in.Get<uint8_t>();
  Invitation invitation;
  invitation.boot_id = in.GetString(kMostText);
  invitation.name = in.GetString(kMostText);
  for (uint64_t& half : invitation.cookie) half = in.Get<uint64_t>();
  if (!in.AtEnd() || magic != kMagic || version != kProtocolVersion) return Malformed("invitation");
  return invitation;
}

Result<MessageKind> KindOf(std::string_view bytes) {
  ByteReader in(bytes);
  const auto version = in.Get<uint8_t>();
  const auto kind = in.Get<uint8_t>();
  if (!in.ok() || version != kProtocolVersion || kind < static_cast<uint8_t>(MessageKind::kHello) ||
      kind > static_cast<uint8_t>(MessageKind::kStage)) {
    return Malformed("message");
  }
  return static_cast<MessageKind>(kind);
}

bool IsPlausible(const WantStage& message) { return IsStageLength(message.most); }

bool IsPlausible(const StageReply& message) {
  return message.code != Code::kOk || IsStageLength(message.length);
}

}  // namespace weightcast::transport::shm
