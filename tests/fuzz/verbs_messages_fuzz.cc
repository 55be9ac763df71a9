// Messages, immediates, offers, answers and region keys of the verbs transport: whatever parses must encode
// to itself.
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "transport/verbs/address.h"
#include "transport/verbs/messages.h"

using namespace weightcast::transport::verbs;

namespace {

void Messages(std::string_view bytes) {
  const auto message = ParseMessage(bytes);
  if (!message) return;
  const MessageBytes again = Encode(*message);
  if (std::string_view(again.bytes.data(), again.length) != bytes) std::abort();
}

void Blobs(std::string_view bytes) {
  if (const auto offer = ParseOffer(bytes); offer.ok() && Encode(*offer) != bytes) std::abort();
  if (const auto answer = ParseAnswer(bytes); answer.ok() && Encode(*answer) != bytes) std::abort();
  if (const auto key = ParseRegionKey(bytes); key.ok() && Encode(*key) != bytes) std::abort();
}

void Immediates(std::string_view bytes) {
  uint32_t bits = 0;
  if (bytes.size() < sizeof bits) return;
  std::memcpy(&bits, bytes.data(), sizeof bits);
  const auto immediate = ParseImmediate(bits);
  if (immediate && (Encode(*immediate) != bits || immediate->lease >= kLeases)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Messages(bytes);
  Blobs(bytes);
  Immediates(bytes);
  return 0;
}
