// The handshake and the control channel after it. One parser at a time, and whole conversations with a peer
// that knows no token: whatever it says, nobody is ever proven.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "endpoint/control_message.h"
#include "endpoint/handshake.h"

using namespace weightcast;
using namespace weightcast::endpoint;

namespace {

template <typename Parsed, typename Encode>
void MustEncodeTo(const Parsed& parsed, std::string_view bytes, Encode encode) {
  if (parsed && encode(*parsed) != bytes) std::abort();
}

void Parsers(std::string_view bytes) {
  if (const auto hello = ParseHello(bytes); hello.ok() && EncodeHello(*hello) != bytes) std::abort();
  MustEncodeTo(ParseChosen(bytes), bytes, EncodeChosen);
  if (const auto offers = ParseOffers(bytes); offers && offers->size() > kMaxTransports) std::abort();
  if (const auto notice = ParseRoad(bytes); notice && notice->reason.size() > kMaxReason) std::abort();
  if (const auto outcome = ParseOutcome(bytes); outcome && outcome->message().size() > kMaxReason)
    std::abort();
}

/// Messages as on the wire: u8 length, u8 type, payload.
void Conversation(transport::Role role, std::string_view bytes) {
  Hello mine{.identity = {"job", "trainer", "", 0, 1}};
  Handshaker side(role, mine, "a token that the peer does not know");
  while (bytes.size() >= 2) {
    const size_t length = std::min<size_t>(static_cast<uint8_t>(bytes[0]), bytes.size() - 2);
    const Message message{static_cast<MessageType>(bytes[1]), std::string(bytes.substr(2, length))};
    bytes.remove_prefix(2 + length);
    for (const Message& answer : side.OnMessage(message))
      if (answer.payload.size() > 2048) std::abort();
    if (side.state() == Handshaker::State::kProven || side.state() == Handshaker::State::kAccepted)
      std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Parsers(bytes);
  Conversation(transport::Role::kInitiator, bytes);
  Conversation(transport::Role::kResponder, bytes);
  return 0;
}
