#include <type_traits>
#include <utility>

#include "protocol/codec.h"
#include "protocol/decoder.h"
#include "protocol/encoder.h"
#include "protocol/greeting.h"

namespace weightcast::protocol {
namespace {

Status CheckSize(std::string_view bytes) {
  if (bytes.size() <= kMaxMessageBytes) return Status::Ok();
  return Error(Code::kProtocol, "it sent a message of ", bytes.size(), " bytes; at most ", kMaxMessageBytes,
               " are allowed: use the same weightcast on all hosts");
}

uint8_t KindOf(std::string_view bytes) { return bytes.empty() ? 0 : static_cast<uint8_t>(bytes.front()); }

Status Unknown(std::string_view bytes) {
  return Error(Code::kProtocol, "it sent ",
               bytes.empty() ? "an empty message" : StrCat("a message of the unknown kind ", KindOf(bytes)),
               "; use the same weightcast on all hosts");
}

/// What follows the kind.
template <typename T>
Status DecodeRest(std::string_view bytes, T& message) {
  Decoder in(TypeName<T>(), bytes.substr(1));
  in.Get(message);
  return in.status();
}

template <typename Variant, size_t... Index>
bool Become(Variant& message, size_t index, std::index_sequence<Index...>) {
  return ((index == Index && (message.template emplace<Index>(), true)) || ...);
}

/// `Greeting` has a form of its own; void: there is none.
template <typename Greeting, typename Variant>
Status DecodeVariant(uint8_t first_kind, std::string_view bytes, Variant& message) {
  const int index = KindOf(bytes) - first_kind;
  const bool known = index >= 0 && Become(message, static_cast<size_t>(index),
                                          std::make_index_sequence<std::variant_size_v<Variant>>());
  if (!known) return Unknown(bytes);
  if constexpr (!std::is_void_v<Greeting>) {
    if (std::holds_alternative<Greeting>(message)) return Unknown(bytes);
  }
  return std::visit([&](auto& what) { return DecodeRest(bytes, what); }, message);
}

}  // namespace

Result<WorkerMessage> DecodeWorkerMessage(std::string_view bytes) {
  WC_RETURN_IF_ERROR(CheckSize(bytes));
  WorkerMessage message;
  if (KindOf(bytes) == kHelloKind) {
    WC_ASSIGN_OR_RETURN(message, DecodeHello(bytes));
  } else {
    WC_RETURN_IF_ERROR(DecodeVariant<Hello>(kFirstWorkerKind, bytes, message));
  }
  return message;
}

Result<ControllerMessage> DecodeControllerMessage(std::string_view bytes) {
  WC_RETURN_IF_ERROR(CheckSize(bytes));
  ControllerMessage message;
  if (KindOf(bytes) == kRefusedKind) {
    WC_ASSIGN_OR_RETURN(message, DecodeRefused(bytes));
  } else {
    WC_RETURN_IF_ERROR(DecodeVariant<Refused>(kFirstControllerKind, bytes, message));
  }
  return message;
}

Result<ObserverMessage> DecodeObserverMessage(std::string_view bytes) {
  WC_RETURN_IF_ERROR(CheckSize(bytes));
  ObserverMessage message;
  WC_RETURN_IF_ERROR(DecodeVariant<void>(kFirstObserverKind, bytes, message));
  return message;
}

Result<ObserverReply> DecodeObserverReply(std::string_view bytes) {
  WC_RETURN_IF_ERROR(CheckSize(bytes));
  ObserverReply message;
  WC_RETURN_IF_ERROR(DecodeVariant<void>(kFirstReplyKind, bytes, message));
  return message;
}

}  // namespace weightcast::protocol
