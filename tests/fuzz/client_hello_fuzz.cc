// What strangers send to a server's port: nothing of it is judged before it is whole, and nobody passes who
// does not name this job, this version and a role in the one form that they have.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "stream/client_hello.h"
#include "stream/keys.h"

using namespace weightcast::stream;

namespace {

constexpr uint32_t kVersion = 7;

const ServerKeys& Keys() {
  static const ServerKeys keys(*MasterToken::Parse("91f2c5d08b3a47e6a1d90c4be8f37265"), kVersion);
  return keys;
}

void CheckPrefixes(std::string_view bytes) {
  for (size_t size = 0; size < bytes.size(); size += std::max<size_t>(bytes.size() / 16, 1)) {
    const auto early = ReadClientHello(bytes.substr(0, size));
    if (!early.ok() || *early) std::abort();
  }
}

void CheckJudgement(const ClientHello& hello) {
  const auto judgement = Keys().Judge(hello);
  if (!judgement.identity) {
    if (judgement.reason.empty()) std::abort();
    return;
  }
  if (IdentityText(*judgement.identity) != hello.identity || judgement.identity->version != kVersion ||
      judgement.identity->member.role == Role::kPeer || Keys().KeyOf(*judgement.identity).empty())
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto hello = ReadClientHello(bytes);
  if (hello.ok() && *hello) {
    if (size > kMostHelloBytes) std::abort();
    CheckPrefixes(bytes);
    CheckJudgement(**hello);
  }
  (void)IsHttp2Client(bytes);
  (void)IsHttp2Server(bytes);
  CheckJudgement({.protocols = {ProtocolName(kVersion)}, .identity = std::string(bytes), .tls13 = true});
  return 0;
}
