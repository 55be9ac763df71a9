// What one write costs the verbs transport in instructions, over the simulated network of the tests.
// bench/verbs_cost.py runs it under callgrind.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "fake_ibverbs/fabric.h"
#include "transport/verbs/verbs_transport.h"

namespace weightcast::transport::verbs {
namespace {

constexpr LinkId kLink{1};
constexpr uint32_t kBatch = 64;

struct End {
  std::shared_ptr<drivers::Ibverbs> host;
  std::unique_ptr<Transport> transport;
  std::vector<std::byte> memory = std::vector<std::byte>(64 << 10);
  std::string key;
  RegionName name;
};

End Start(fake::Fabric& fabric, Incarnation self) {
  End end;
  end.host = fabric.NewHost({});
  end.transport = VerbsTransport::Create({.settings = {}, .self = self}, end.host).value();
  DescribedMemory memory;
  memory.address = end.memory.data();
  memory.length = end.memory.size();
  end.name = {.owner = self, .id = 1, .generation = 1};
  end.key = end.transport->Register(end.name, memory, Access::kReadWrite).value();
  return end;
}

/// Posts and completes `writes` writes of `length` bytes; every `signalled` one carries a signal.
void Run(uint32_t writes, uint64_t length, uint32_t signalled) {
  fake::Fabric fabric({.virtual_time = true});
  End a = Start(fabric, 1);
  End b = Start(fabric, 2);
  const TimePoint deadline = Clock::now() + std::chrono::seconds(60);
  const std::string offer = a.transport->OpenLink(kLink, Role::kInitiator, 2, "", deadline).value();
  const std::string answer = b.transport->OpenLink(kLink, Role::kResponder, 1, offer, deadline).value();
  if (!a.transport->Establish(kLink, answer).ok()) std::abort();
  std::array<Event, kBatch> events;
  for (bool ready = false; !ready;) {
    fabric.Advance(std::chrono::milliseconds(1));
    (void)b.transport->Progress(events);
    const size_t count = a.transport->Progress(events).events;
    for (size_t i = 0; i < count; ++i) ready = ready || std::holds_alternative<LinkReady>(events[i]);
  }
  const RemoteRegion remote = a.transport->Import(kLink, b.name, b.memory.size(), b.key).value();
  std::array<Op, kBatch> ops;
  for (uint32_t i = 0; i < kBatch; ++i) {
    ops[i].local = 1;
    ops[i].remote = remote;
    ops[i].length = length;
    ops[i].cookie = i;
    ops[i].has_signal = signalled > 0 && i % signalled == signalled - 1;
    ops[i].signal = {.grant = {}, .transfer = i, .chunk = 0, .chunks = 1, .checksum = 0};
  }
  uint32_t posted = 0;
  uint32_t done = 0;
  while (done < writes) {
    const uint32_t from = posted % kBatch;
    const uint32_t want = std::min(kBatch - from, writes - posted);
    posted += static_cast<uint32_t>(a.transport->Post(kLink, 0, std::span(ops).subspan(from, want)));
    fabric.Advance(std::chrono::milliseconds(1));
    done += static_cast<uint32_t>(a.transport->Progress(events).events);
    (void)b.transport->Progress(events);
  }
  std::printf("%u writes\n", done);
  for (const End* end : {&a, &b})
    fabric.Kill(*end->host);  // No graceful shutdown: it would poll for as long as it takes.
}

}  // namespace
}  // namespace weightcast::transport::verbs

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "verbs_cost <writes> <bytes of each> <one in how many carries a signal; 0: none>\n");
    return 2;
  }
  weightcast::transport::verbs::Run(static_cast<uint32_t>(std::atoi(argv[1])),
                                    static_cast<uint64_t>(std::atoi(argv[2])),
                                    static_cast<uint32_t>(std::atoi(argv[3])));
  return 0;
}
