// What a stream costs: processor time of a handshake on both sides, memory of strangers and of streams.
//
//     ninja -C build/debug stream_cost && build/debug/tests/stream_cost [HANDSHAKES] [STREAMS]
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "base/process.h"
#include "base/socket.h"
#include "base/strings.h"
#include "stream/client.h"
#include "stream/keys.h"
#include "stream/proof.h"
#include "stream/server.h"
#include "stream/tls.h"

namespace {

using namespace weightcast;
using namespace weightcast::stream;

constexpr uint32_t kVersion = 7;

double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}
size_t Allocated() { return mallinfo2().uordblks; }

/// Adds the time of its life.
class Timed {
 public:
  explicit Timed(double& seconds) : seconds_(seconds), begin_(ProcessorSeconds()) {}
  ~Timed() { seconds_ += ProcessorSeconds() - begin_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double& seconds_;
  double begin_;
};

struct Cost {
  double client = 0;
  double server = 0;
  double refused = 0;
};

/// One handshake from memory to memory, with the controller's proof.
void Handshake(const ServerKeys& keys, const RoleToken& token, const TlsContext& clients,
               const TlsContext& servers, Cost& cost) {
  std::string plaintext;
  std::string bytes;
  std::optional<TlsSession> client;
  std::optional<TlsSession> server;
  {
    const Timed timed(cost.client);
    const auto mine = *ClientKeysOf(token, Purpose::kControl, kVersion);
    client = *TlsSession::Begin(clients, {mine.identity, mine.key});
    (void)client->Receive("", plaintext);
    client->TakeOutput(bytes);
  }
  {
    const Timed timed(cost.server);
    const auto judgement = keys.Judge(**ReadClientHello(bytes));
    server =
        *TlsSession::Begin(servers, {IdentityText(*judgement.identity), keys.KeyOf(*judgement.identity)});
    (void)server->Receive(bytes, plaintext);
    bytes.clear();
    server->TakeOutput(bytes);
  }
  {
    const Timed timed(cost.client);
    (void)client->Receive(bytes, plaintext);
    bytes.clear();
    client->TakeOutput(bytes);
  }
  {
    const Timed timed(cost.server);
    (void)server->Receive(bytes, plaintext);
    bytes = *ProveController(*server, keys.controller());
  }
  {
    const Timed timed(cost.client);
    if (!CheckController(*client, token.controller(), bytes).ok()) std::abort();
  }
}

void MeasureHandshakes(int count, const MasterToken& master) {
  const ServerKeys keys(master, kVersion);
  const auto clients = *TlsContext::Make(TlsContext::Side::kClient, ProtocolName(kVersion));
  const auto servers = *TlsContext::Make(TlsContext::Side::kServer, ProtocolName(kVersion));
  const auto token = *RoleToken::Derive(master, {Role::kTrainer});
  const auto stranger =
      *RoleToken::Derive(*MasterToken::Parse("0b7de44a92c8135f6e01ab39d7f2885c"), {Role::kTrainer});
  const auto theirs = *ClientKeysOf(stranger, Purpose::kControl, kVersion);
  auto session = *TlsSession::Begin(clients, {theirs.identity, theirs.key});
  std::string plaintext;
  std::string hello;
  (void)session.Receive("", plaintext);
  session.TakeOutput(hello);
  Cost warm;
  Handshake(keys, token, clients, servers, warm);
  Cost cost;
  for (int i = 0; i < count; ++i) Handshake(keys, token, clients, servers, cost);
  for (int i = 0; i < count; ++i) {
    const Timed timed(cost.refused);
    if (keys.Judge(**ReadClientHello(hello)).identity) std::abort();
  }
  std::printf("handshake, %d times: client %.0f us, server %.0f us of processor time\n", count,
              cost.client / count * 1e6, cost.server / count * 1e6);
  std::printf("a stranger's ClientHello is judged in %.1f us\n", cost.refused / count * 1e6);
}

struct Counts {
  std::atomic<int> open{0};
};

void MeasureMemory(int count, const MasterToken& master) {
  RaiseDescriptorLimit();
  Counts counts;
  auto server = *StreamServer::Start({.host = "127.0.0.1",
                                      .version = kVersion,
                                      .master = master,
                                      .lease = std::chrono::seconds(60),
                                      .patience = std::chrono::seconds(60),
                                      .handlers = {.on_open = [&](const auto&) { ++counts.open; },
                                                   .on_message = [](const auto&, std::string) {},
                                                   .on_closed = [](const auto&, const Status&) {}}});
  const SocketAddress address = *SocketAddress::Parse(StrCat("127.0.0.1:", server->port()));
  const size_t quiet = Allocated();
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < count; ++i) {
    strangers.push_back(std::move(*Connect(address, In(10.0))));
    (void)SendAll(strangers.back().get(), "\x16\x03\x01", In(10.0));
  }
  std::this_thread::sleep_for(std::chrono::seconds(2));  // Until the acceptor has looked at all.
  std::printf("a stranger in its ClientHello: %zu bytes\n",
              (Allocated() - quiet) / static_cast<size_t>(count));
  strangers.clear();

  const auto token = *RoleToken::Derive(master, {Role::kTrainer});
  const size_t before = Allocated();
  std::vector<std::unique_ptr<ClientStream>> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::move(*ClientStream::Create()));
    if (!clients.back()
             ->Connect({.address = address.ToString(),
                        .version = kVersion,
                        .token = token,
                        .lease = std::chrono::seconds(60)})
             .ok())
      std::abort();
    const auto event = clients.back()->Next(In(30.0));
    if (event.kind != ClientStream::Event::Kind::kOpened) std::abort();
  }
  std::printf("an open stream, client and server in one process: %zu bytes (%d open)\n",
              (Allocated() - before) / static_cast<size_t>(count), counts.open.load());
  server->Stop();
}

}  // namespace

int main(int argc, char** argv) {
  const int handshakes = argc > 1 ? std::atoi(argv[1]) : 1000;
  const int streams = argc > 2 ? std::atoi(argv[2]) : 200;
  if (handshakes < 1 || streams < 1) {
    std::fprintf(stderr, "usage: stream_cost [HANDSHAKES] [STREAMS]\n");
    return 2;
  }
  const auto master = *MasterToken::Parse("91f2c5d08b3a47e6a1d90c4be8f37265");
  MeasureHandshakes(handshakes, master);
  MeasureMemory(streams, master);
  return 0;
}
