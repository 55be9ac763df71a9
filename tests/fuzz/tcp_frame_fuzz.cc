// Frames, greetings, offers and answers of the tcp transport: whatever parses must encode to itself.
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "transport/tcp/frame.h"
#include "transport/tcp/greeting.h"
#include "transport/tcp/offer.h"

using namespace weightcast::transport::tcp;

namespace {

void Frames(std::span<const std::byte> bytes) {
  while (true) {
    Frame frame;
    const ParsedFrame parsed = ParseFrame(bytes, frame);
    if (parsed.outcome != ParsedFrame::Outcome::kFrame) return;
    std::array<std::byte, kMaxFrameSize> again{};
    const size_t size = EncodeFrame(frame, again);
    if (size != parsed.size || std::memcmp(again.data(), bytes.data(), size) != 0) std::abort();
    if (frame.payload() > kMaxLength) std::abort();
    bytes = bytes.subspan(size);
  }
}

void Blobs(std::string_view bytes) {
  if (const auto offer = ParseOffer(bytes); offer.ok() && EncodeOffer(*offer) != bytes) std::abort();
  if (const auto answer = ParseAnswer(bytes); answer.ok() && answer->addresses.size() > kMaxAddresses)
    std::abort();
  if (bytes.size() != kGreetingSize) return;
  GreetingBytes greeting;
  std::memcpy(greeting.data(), bytes.data(), greeting.size());
  if (const auto parsed = ParseGreeting(greeting); parsed && EncodeGreeting(*parsed) != greeting)
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Frames({reinterpret_cast<const std::byte*>(data), size});
  Blobs({reinterpret_cast<const char*>(data), size});
  return 0;
}
