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

Cookie NewCookie() { return {RandomId(), RandomId()}; }

std::string Encode(const Invitation& invitation) {
  ByteWriter out;
  out.Put(kMagic, kProtocolVersion);
  out.PutString(invitation.boot_id);
  out.PutString(invitation.name);
  out.Put(invitation.cookie);
  return out.Take();
}

Result<Invitation> DecodeInvitation(std::string_view bytes) {
  ByteReader in(bytes);
  const auto magic = in.Get<uint32_t>();
  const auto version = in.Get<uint8_t>();
  Invitation invitation;
  invitation.boot_id = in.GetString(kMostText);
  invitation.name = in.GetString(kMostText);
  in.Get(invitation.cookie);
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
