// The handshake and the control channel after it. One parser at a time, and whole conversations with a peer
// that knows no token: whatever it says, nobody is ever proven.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "endpoint/handshake.h"
#include "endpoint/message.h"
#include "endpoint/notices.h"

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
  MustEncodeTo(ParseCredit(bytes), bytes, EncodeCredit);
  if (const auto offers = ParseOffers(bytes); offers && offers->size() > kMaxTransports) std::abort();
  if (const auto notice = ParsePath(bytes); notice && notice->reason.size() > kMaxReason) std::abort();
  if (const auto outcome = ParseOutcome(bytes); outcome && outcome->message().size() > kMaxReason)
    std::abort();
}

/// Messages as on the wire: u8 length, u8 type, payload.
void Conversation(transport::Role role, std::string_view bytes) {
  Hello mine;
  mine.identity = {"job", "trainer", "", 0, 1};
  Handshaker side(role, mine,
                  [](const Identity&) { return Key{Key::Of::kJob, "a token that the peer does not know"}; });
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

/// A peer's notices and credit, as u8 kind and two bytes of length or cost; some notices are taken and some
/// sent meanwhile. However they come, no more than the window waits, here or there.
void Window(std::string_view bytes) {
  Notices notices;
  uint64_t waiting = 0;
  uint64_t out = 0;
  uint64_t credit = 0;
  for (; bytes.size() >= 3; bytes.remove_prefix(3)) {
    const size_t number = static_cast<uint8_t>(bytes[1]) << 8 | static_cast<uint8_t>(bytes[2]);
    switch (bytes[0] % 4) {
      case 0:
        if (!notices.OnNotice(std::string(number, 'x')).ok()) return;
        waiting += Notices::CostOf(number);
        break;
      case 1:
        if (const auto taken = notices.Take()) waiting -= Notices::CostOf(taken->size());
        if (notices.CreditDue() && !ParseCredit(notices.NextCredit())) std::abort();
        break;
      case 2:
        if (!notices.Reserve(number)) break;
        notices.OnSent(number);
        out += Notices::CostOf(number);
        break;
      default:
        if (!notices.OnCredit(EncodeCredit(credit += number)).ok()) return;
    }
    if (waiting > Notices::kWindow || out - credit > Notices::kWindow) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Parsers(bytes);
  Window(bytes);
  Conversation(transport::Role::kInitiator, bytes);
  Conversation(transport::Role::kResponder, bytes);
  return 0;
}
