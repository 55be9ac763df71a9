// What one process of a large job needs of the verbs transport: queue pairs, queues, descriptors, memory. One
// inference rank with a link to each trainer, and one trainer with a link to each inference rank, over the
// simulated network of the tests. A chunk with its signal goes over each link, under a grant.
//
//     cmake --build build/debug --target verbs_cluster && build/debug/tests/verbs_cluster 256 128 1 2 8
//
// Exits with 1 where a bound is broken, or a chunk has not arrived.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "endpoint/create.h"
#include "fake_ibverbs/fabric.h"
#include "transport/tcp/factory.h"
#include "transport/verbs/address.h"
#include "transport/verbs/queue_table.h"
#include "transport/verbs/verbs_transport.h"
#include "verbs_cluster/cluster.h"
#include "verbs_cluster/heap.h"

namespace weightcast::transport::verbs {
namespace {

/// Links to one process, one after another, until it takes no more.
void PrintLimit(int nics) {
  fake::Fabric fabric({.virtual_time = true});
  Process one(fabric, HostWith(nics, false), 0, kChunk);
  Process peer(fabric, HostWith(nics, true), 1, kChunk);
  std::map<size_t, uint32_t> links_by_lanes;
  Status refused;
  for (uint32_t id = 1; refused.ok(); ++id) {
    const TimePoint deadline = Clock::now() + std::chrono::minutes(1);
    const auto offer = peer.transport->OpenLink(LinkId{id}, Role::kInitiator, one.self, "", deadline);
    Require(offer.ok(), offer.status().message());
    const auto answer = one.transport->OpenLink(LinkId{id}, Role::kResponder, peer.self, *offer, deadline);
    refused = answer.status();
    size_t lanes = 0;
    if (answer.ok()) {
      const auto parsed = ParseAnswer(*answer).value();
      for (const AnsweredRail& rail : parsed.rails) lanes += rail.data.size();
      ++links_by_lanes[lanes];
    }
    peer.transport->CloseLink(LinkId{id});
    peer.Pump();
  }
  std::printf("\n%d NIC, until no link is taken any more:", nics);
  for (auto each = links_by_lanes.rbegin(); each != links_by_lanes.rend(); ++each) {
    std::printf(" %u links of %zu lanes,", each->second, each->first);
  }
  std::printf(" then:\n    %s\n", refused.message().c_str());
  const int count = fabric.CountersOf(one.verbs->host(), 0).qps;
  Expect(count <= static_cast<int>(QueueTable::kMost), StrCat(count, " queue pairs on one NIC"));
  Expect(refused.code() == Code::kExhausted, refused.message());
  fabric.Kill(one.verbs->host());
  fabric.Kill(peer.verbs->host());
}

fake::Fabric* network = nullptr;

Result<std::unique_ptr<Transport>> CreateOnNetwork(const TransportOptions& options) {
  auto host = std::make_shared<Metered>(network->NewHost(HostWith(1, true)));
  return VerbsTransport::Create(options, std::move(host));
}

/// Descriptors and heap of an endpoint and of each of its connections, over verbs with tcp behind it.
void PrintEndpoints(uint32_t peers) {
  fake::Fabric fabric({.background = true});
  network = &fabric;
  static constexpr std::array kFactories = {TransportFactory{"verbs", &CreateOnNetwork},
                                            TransportFactory{"tcp", &CreateTcpTransport}};
  const auto start = [](uint32_t rank) {
    EndpointOptions options;
    options.self = {"cluster", rank == 0 ? "inference" : "trainer", rank == 0 ? "rollout" : "", rank, 0};
    Require(options.settings.Set("bind", "127.0.0.1").ok(), "bind");
    auto made = endpoint::CreateWith(std::move(options), kFactories);
    Require(made.ok(), made.status().ToString());
    return std::move(*made);
  };
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  const size_t before = Descriptors();
  endpoints.push_back(start(0));
  const size_t alone = Descriptors() - before;
  for (uint32_t rank = 1; rank <= peers; ++rank) endpoints.push_back(start(rank));
  const auto connect = [&](uint32_t rank) {
    auto made = endpoints[rank]->Connect(endpoints[0]->Addresses(), endpoints[0]->self(),
                                         Clock::now() + std::chrono::seconds(30));
    Require(made.ok(), made.status().ToString());
    Require(made->transport_name() == "verbs", made->Describe());
  };
  connect(1);  // What the first one brings stays.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const size_t first = Descriptors();
  CountedHeap::all = true;
  const int64_t heap = CountedHeap::bytes;
  for (uint32_t rank = 2; rank <= peers; ++rank) connect(rank);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CountedHeap::all = false;
  const auto ends = static_cast<double>(2 * (peers - 1));
  const double each = static_cast<double>(Descriptors() - first) / ends;
  std::printf(
      "\nan endpoint over verbs on 1 NIC, and tcp: %zu descriptors, %.2f more and %.0f KiB of heap for"
      " each connection (both ends of %u counted)\n",
      alone, each, static_cast<double>(CountedHeap::bytes - heap) / ends / 1024, peers - 1);
  Expect(each <= 1, "more than one descriptor a connection");
  endpoints.clear();
}

}  // namespace
}  // namespace weightcast::transport::verbs

int main(int argc, char** argv) {
  using namespace weightcast::transport::verbs;
  if (argc < 4) {
    std::fprintf(stderr, "verbs_cluster <trainers> <inference ranks> <NICs of each host>...\n");
    return 2;
  }
  const auto number = [&](int i) { return static_cast<uint32_t>(std::atoi(argv[i])); };
  std::printf(
      "| process | links | NICs | lanes a link | queue pairs of one NIC | of all | completion "
      "queue | receive queue | descriptors | heap without links, KiB | heap a link, KiB | heap, MiB | "
      "registered, KiB |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (int i = 3; i < argc; ++i) {
    for (const Part part : {Part::kInference, Part::kTrainer}) {
      Cluster cluster(part, part == Part::kInference ? number(1) : number(2), static_cast<int>(number(i)));
      cluster.Run();
      cluster.Print();
    }
  }
  PrintLimit(1);
  PrintEndpoints(9);
  return AllHeld() ? 0 : 1;
}
