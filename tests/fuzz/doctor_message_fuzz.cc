// What hosts say to each other in a test, and who they are: whatever is taken can be said again.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "peertest/echo_socket.h"
#include "peertest/messages.h"
#include "peertest/target.h"

using namespace weightcast::peertest;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto request = DecodeRequest(text); request.ok() && !DecodeRequest(Encode(*request)).ok())
    std::abort();
  if (const auto reply = DecodeReply(text); reply.ok() && !DecodeReply(Encode(reply)).ok()) std::abort();
  if (const auto facts = DecodeFacts(text); facts.ok() && !DecodeFacts(Encode(*facts)).ok()) std::abort();
  if (const auto place = ParseTarget(text); place.ok() && !ParseTarget(TargetText(*place)).ok()) std::abort();
  (void)ParseHostsFile(text);
  (void)ParseEchoKey(text);
  constexpr std::array<char, kEchoKeyBytes> kKey{};
  const auto header = ReadEcho(std::span(reinterpret_cast<const char*>(data), size), kKey);
  if (header && size < kEchoHeader) std::abort();
  return 0;
}
