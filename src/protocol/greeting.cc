#include "protocol/greeting.h"

#include "protocol/decoder.h"
#include "protocol/encoder.h"

namespace weightcast::protocol {
namespace {

// What follows each, inside Hello ...
constexpr uint8_t kProtocol = 0x08;     ///< A number.
constexpr uint8_t kModel = 0x1a;        ///< Text.
constexpr uint8_t kIncarnation = 0x31;  ///< Eight bytes.
constexpr uint8_t kMembers = 0x7a;  ///< All members, as in any other message; unknown to versions 1 and 2.
// ... and inside Refused.
constexpr uint8_t kReason = 0x0a;  ///< Kind and text, with their length.
constexpr uint8_t kCode = 0x08;    ///< A number.
constexpr uint8_t kText = 0x12;    ///< Text; left out if there is none.

std::string Wrap(uint8_t byte, std::string_view inside) {
  Encoder out;
  out.PutByte(byte);
  out.PutText(inside);
  return out.Take();
}
/// What stands there twice, or could stand there otherwise, must be as it would be written here.
template <typename T>
Result<T> TheOnlyForm(T message, std::string_view bytes) {
  if (EncodeGreeting(message) == bytes) return message;
  return Error(
      Code::kProtocol, "a ", TypeName<T>(),
      " from the network: its first bytes differ from its fields; use the same weightcast on all hosts");
}

}  // namespace

std::string EncodeGreeting(const Hello& hello) {
  Encoder members;
  members.Put(hello);
  Encoder out;
  out.PutByte(kProtocol);
  out.PutNumber(hello.protocol);
  out.PutByte(kModel);
  out.PutText(hello.model);
  out.PutByte(kIncarnation);
  out.Put(hello.incarnation, Fixed{});
  return Wrap(kHelloKind, out.Take() + Wrap(kMembers, members.Take()));
}

Result<Hello> DecodeHello(std::string_view bytes) {
  std::string_view all, text;
  uint64_t number = 0;
  Decoder outer(TypeName<Hello>(), bytes);
  if (!outer.GetByte(kHelloKind) || !outer.GetText(all)) return outer.status();
  Decoder in(TypeName<Hello>(), all);
  if (!in.GetByte(kProtocol) || !in.GetNumber(number)) return in.status();
  Hello hello;
  hello.protocol = static_cast<uint32_t>(std::min<uint64_t>(number, std::numeric_limits<uint32_t>::max()));
  if (hello.protocol != kProtocolVersion) return hello;
  (void)(in.GetByte(kModel) && in.GetText(text) && in.GetByte(kIncarnation) && in.Get(number, Fixed{}) &&
         in.GetByte(kMembers) && in.GetText(text));
  WC_RETURN_IF_ERROR(outer.status());
  WC_RETURN_IF_ERROR(in.status());
  Decoder members(TypeName<Hello>(), text);
  members.Get(hello);
  WC_RETURN_IF_ERROR(members.status());
  return TheOnlyForm(std::move(hello), bytes);
}

std::string EncodeGreeting(const Refused& refused) {
  Encoder out;
  out.PutByte(kCode);
  out.PutNumber(static_cast<uint64_t>(refused.reason.code()));
  std::string reason = out.Take();
  const std::string_view text = std::string_view(refused.reason.message()).substr(0, kMaxStatusBytes);
  if (!text.empty()) reason += Wrap(kText, text);
  return Wrap(kRefusedKind, Wrap(kReason, reason));
}

Result<Refused> DecodeRefused(std::string_view bytes) {
  std::string_view all, reason, text;
  uint64_t code = 0;
  Decoder outer(TypeName<Refused>(), bytes);
  (void)(outer.GetByte(kRefusedKind) && outer.GetText(all));
  WC_RETURN_IF_ERROR(outer.status());
  Decoder middle(TypeName<Refused>(), all);
  (void)(middle.GetByte(kReason) && middle.GetText(reason));
  WC_RETURN_IF_ERROR(middle.status());
  Decoder in(TypeName<Refused>(), reason);
  if (!in.GetByte(kCode) || !in.GetNumber(code)) return in.status();
  if (code == 0 || code > static_cast<uint64_t>(LastOf(Code{})))
    in.Fail(StrCat(": reason.code ", code, " is unknown"));
  else if (in.left() > 0 && in.GetByte(kText) && in.GetText(text) && text.size() > kMaxStatusBytes)
    in.Fail(
        StrCat(": reason.message has ", text.size(), " bytes; at most ", kMaxStatusBytes, " are allowed"));
  WC_RETURN_IF_ERROR(in.status());
  return TheOnlyForm(Refused{.reason = {static_cast<Code>(code), std::string(text)}}, bytes);
}

}  // namespace weightcast::protocol
