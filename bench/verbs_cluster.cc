// What one process of a large job needs of the verbs transport: queue pairs, queues, descriptors, memory. One
// inference rank with a link to each trainer, and one trainer with a link to each inference rank, over the
// simulated network of the tests. A chunk with its signal goes over each link, under a grant.
//
//     cmake --build build/debug --target verbs_cluster && build/debug/tests/verbs_cluster 256 128 1 2 8
//
// Exits with 1 where a bound below is broken, or a chunk has not arrived.
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/strings.h"
#include "endpoint/create.h"
#include "fake_ibverbs/fabric.h"
#include "transport/tcp/factory.h"
#include "transport/verbs/address.h"
#include "transport/verbs/nic.h"
#include "transport/verbs/verbs_transport.h"

// --- Heap that is counted: that of a scope, or of all threads, but for libibverbs' own

namespace {
std::atomic<int64_t> heap_bytes = 0;
std::atomic<bool> count_all = false;
thread_local bool count_here = false;
thread_local bool provider_here = false;

void Count(void* block, int sign) {
  if (block == nullptr || provider_here || !(count_here || count_all)) return;
  heap_bytes += sign * static_cast<int64_t>(malloc_usable_size(block));
}

/// Sets a flag for the length of a scope.
class Scope {
 public:
  explicit Scope(bool& flag) : flag_(flag), before_(flag) { flag_ = true; }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() { flag_ = before_; }

 private:
  bool& flag_;
  bool before_;
};
}  // namespace

void* operator new(size_t size) {
  void* const block = std::malloc(size);
  if (block == nullptr) throw std::bad_alloc();
  Count(block, 1);
  return block;
}
void operator delete(void* block) noexcept {
  Count(block, -1);
  std::free(block);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }

namespace weightcast::transport::verbs {
namespace {

constexpr uint64_t kChunk = 64 << 10;
/// Heap of one link: of the link itself, and of each of its queue pairs.
constexpr int64_t kMostOfLink = 16 << 10;
constexpr int64_t kMostOfQueuePair = 24 << 10;

bool failed = false;

void Require(bool condition, std::string_view what) {
  if (condition) return;
  std::fprintf(stderr, "verbs_cluster: %.*s\n", static_cast<int>(what.size()), what.data());
  std::exit(1);
}
/// One of the bounds: goes on, and fails in the end.
void Expect(bool condition, std::string_view what) {
  if (condition) return;
  std::fprintf(stderr, "verbs_cluster: too much: %.*s\n", static_cast<int>(what.size()), what.data());
  failed = true;
}

/// A host's libibverbs, whose heap is not counted and whose registrations and queues are.
class Metered final : public drivers::Ibverbs {
 public:
  explicit Metered(std::shared_ptr<drivers::Ibverbs> host) : host_(std::move(host)) {}
  [[nodiscard]] const drivers::Ibverbs& host() const { return *host_; }

  uint64_t registered = 0;  ///< Bytes, over all devices.
  int completions = 0;      ///< Entries of one device's queues.
  uint32_t receives = 0;

  ibv_fork_status ForkStatus() override { return host_->ForkStatus(); }
  int ForkInit() override { return host_->ForkInit(); }
  ibv_device** GetDeviceList(int* count) override {
    const Scope scope(provider_here);
    return host_->GetDeviceList(count);
  }
  void FreeDeviceList(ibv_device** list) override {
    const Scope scope(provider_here);
    host_->FreeDeviceList(list);
  }
  ibv_context* OpenDevice(ibv_device* device) override {
    const Scope scope(provider_here);
    return host_->OpenDevice(device);
  }
  int CloseDevice(ibv_context* context) override {
    const Scope scope(provider_here);
    return host_->CloseDevice(context);
  }
  int QueryDevice(ibv_context* context, ibv_device_attr* attr) override {
    return host_->QueryDevice(context, attr);
  }
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attr) override {
    return host_->QueryPort(context, port, attr);
  }
  int QueryGid(ibv_context* context, uint8_t port, uint32_t index, ibv_gid_entry* entry) override {
    return host_->QueryGid(context, port, index, entry);
  }
  int QueryPkey(ibv_context* context, uint8_t port, int index, __be16* key) override {
    return host_->QueryPkey(context, port, index, key);
  }
  int GetAsyncEvent(ibv_context* context, ibv_async_event* event) override {
    const Scope scope(provider_here);
    return host_->GetAsyncEvent(context, event);
  }
  void AckAsyncEvent(ibv_async_event* event) override {
    const Scope scope(provider_here);
    host_->AckAsyncEvent(event);
  }
  ibv_pd* AllocPd(ibv_context* context) override {
    const Scope scope(provider_here);
    return host_->AllocPd(context);
  }
  int DeallocPd(ibv_pd* pd) override {
    const Scope scope(provider_here);
    return host_->DeallocPd(pd);
  }
  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t length, int access) override {
    const Scope scope(provider_here);
    registered += length;
    return host_->RegMr(pd, address, length, access);
  }
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                      int access) override {
    const Scope scope(provider_here);
    return host_->RegDmabufMr(pd, offset, length, iova, fd, access);
  }
  int DeregMr(ibv_mr* mr) override {
    const Scope scope(provider_here);
    registered -= mr->length;
    return host_->DeregMr(mr);
  }
  ibv_comp_channel* CreateCompChannel(ibv_context* context) override {
    const Scope scope(provider_here);
    return host_->CreateCompChannel(context);
  }
  int DestroyCompChannel(ibv_comp_channel* channel) override {
    const Scope scope(provider_here);
    return host_->DestroyCompChannel(channel);
  }
  ibv_cq* CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel) override {
    const Scope scope(provider_here);
    completions = entries;
    return host_->CreateCq(context, entries, channel);
  }
  int DestroyCq(ibv_cq* cq) override {
    const Scope scope(provider_here);
    return host_->DestroyCq(cq);
  }
  int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override {
    const Scope scope(provider_here);
    return host_->GetCqEvent(channel, cq);
  }
  void AckCqEvents(ibv_cq* cq, unsigned int count) override { host_->AckCqEvents(cq, count); }
  ibv_srq* CreateSrq(ibv_pd* pd, ibv_srq_init_attr* attr) override {
    const Scope scope(provider_here);
    receives = attr->attr.max_wr;
    return host_->CreateSrq(pd, attr);
  }
  int DestroySrq(ibv_srq* srq) override {
    const Scope scope(provider_here);
    return host_->DestroySrq(srq);
  }
  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attr) override {
    const Scope scope(provider_here);
    return host_->CreateQp(pd, attr);
  }
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) override {
    const Scope scope(provider_here);
    return host_->ModifyQp(qp, attr, mask);
  }
  int QueryQp(ibv_qp* qp, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) override {
    return host_->QueryQp(qp, attr, mask, init);
  }
  int DestroyQp(ibv_qp* qp) override {
    const Scope scope(provider_here);
    return host_->DestroyQp(qp);
  }
  int PostSend(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) override {
    const Scope scope(provider_here);
    return host_->PostSend(qp, list, bad);
  }
  int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) override {
    const Scope scope(provider_here);
    return host_->PostSrqRecv(srq, list, bad);
  }
  int PollCq(ibv_cq* cq, int entries, ibv_wc* out) override {
    const Scope scope(provider_here);
    return host_->PollCq(cq, entries, out);
  }
  int ReqNotifyCq(ibv_cq* cq, bool solicited_only) override {
    const Scope scope(provider_here);
    return host_->ReqNotifyCq(cq, solicited_only);
  }
  [[nodiscard]] std::string StatusText(ibv_wc_status status) const override {
    return host_->StatusText(status);
  }
  [[nodiscard]] std::string EventText(ibv_event_type type) const override { return host_->EventText(type); }

 private:
  std::shared_ptr<drivers::Ibverbs> host_;
};

size_t Descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(open), end(open))) - 1;  // Its own.
}

/// All on one InfiniBand network. `small`: the devices of a peer, which has one link.
fake::HostConfig HostWith(int nics, bool small) {
  fake::HostConfig host{.devices = {}};
  for (int i = 0; i < nics; ++i) {
    fake::DeviceConfig device;
    device.name = StrCat("nic", i);
    device.ports[0].infiniband = true;
    device.max_qp = 1 << 16;
    if (small) {
      device.max_cqe = 256;
      device.max_srq_wr = 64;
    }
    host.devices.push_back(device);
  }
  return host;
}

/// A process: its transport, one region of it, and what it has heard.
struct Process {
  Process(fake::Fabric& fabric, const fake::HostConfig& config, uint32_t nth, uint64_t bytes)
      : verbs(std::make_shared<Metered>(fabric.NewHost(config))), memory(bytes) {
    self = nth + 1;
    transport = VerbsTransport::Create({.settings = {}, .self = self}, verbs).value();
  }
  void Register(Access access) {
    DescribedMemory described;
    described.address = memory.data();
    described.length = memory.size();
    name = {.owner = self, .id = 1, .generation = 1};
    key = transport->Register(name, described, access).value();
  }
  void Pump() {
    std::array<Event, 64> events;
    for (size_t count = events.size(); count == events.size();) {
      count = transport->Progress(events).events;
      for (size_t i = 0; i < count; ++i) Take(events[i]);
    }
  }
  void Take(const Event& event) {
    if (const auto* up = std::get_if<LinkReady>(&event)) {
      ++ready;
      fewest = std::min(fewest, up->lanes);
      most = std::max(most, up->lanes);
    } else if (std::holds_alternative<SignalArrived>(event)) {
      ++signals;
    } else if (const auto* done = std::get_if<Completion>(&event)) {
      Require(done->code == Code::kOk, "a write has failed");
      ++completed;
    } else if (const auto* down = std::get_if<LinkDown>(&event)) {
      Require(false, down->reason.message());
    }
  }

  std::shared_ptr<Metered> verbs;
  std::vector<std::byte> memory;
  std::unique_ptr<Transport> transport;
  Incarnation self = 0;
  RegionName name;
  std::string key;
  uint32_t ready = 0;
  uint32_t fewest = UINT32_MAX;  ///< Lanes of a link.
  uint32_t most = 0;
  uint32_t signals = 0;
  uint32_t completed = 0;
};

enum class Part { kTrainer, kInference };

/// One process of this part with `peers` of the other one.
class Cluster {
 public:
  Cluster(Part part, uint32_t peers, int nics) : part_(part), nics_(nics) {
    const size_t before = Descriptors();
    {
      const Scope scope(count_here);
      const int64_t heap = heap_bytes;
      one_ = std::make_unique<Process>(fabric_, HostWith(nics, false), 0, peers * kChunk);
      alone_ = heap_bytes - heap - static_cast<int64_t>(one_->memory.size());
    }
    descriptors_ = Descriptors() - before;
    own_registered_ = one_->verbs->registered;
    one_->Register(part == Part::kInference ? Access::kGranted : Access::kLocal);
    for (uint32_t i = 0; i < peers; ++i) {
      others_.push_back(std::make_unique<Process>(fabric_, HostWith(nics, true), i + 1, kChunk));
      others_.back()->Register(part == Part::kInference ? Access::kLocal : Access::kGranted);
    }
  }
  ~Cluster() {
    fabric_.Kill(
        one_->verbs->host());  // No graceful shutdown: it would wait for a network whose time stands still.
    for (const auto& other : others_) fabric_.Kill(other->verbs->host());
  }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  void Run() {
    const size_t open = Descriptors();
    const int64_t heap = heap_bytes;
    for (uint32_t i = 0; i < others_.size(); ++i) Connect(i);
    Until("the links become ready", [&] {
      return one_->ready == others_.size() &&
             std::ranges::all_of(others_, [](const auto& other) { return other->ready == 1; });
    });
    for (uint32_t i = 0; i < others_.size(); ++i) Write(i);
    Until("the chunks arrive", [&] {
      if (part_ == Part::kInference) return one_->signals == others_.size();
      return one_->completed == others_.size() &&
             std::ranges::all_of(others_, [](const auto& other) { return other->signals == 1; });
    });
    Compare();
    links_ = heap_bytes - heap;
    Require(Descriptors() == open, "a link has opened a descriptor");
  }

  void Print() const {
    const auto peers = static_cast<int64_t>(others_.size());
    int most = 0;
    int all = 0;
    for (int nic = 0; nic < nics_; ++nic) {
      const int count = fabric_.CountersOf(one_->verbs->host(), nic).qps;
      most = std::max(most, count);
      all += count;
    }
    const char* const who = part_ == Part::kInference ? "inference rank" : "trainer";
    std::printf(
        "| %s | %lld | %d | %u-%u | %d | %d | %d | %u | %zu | %lld | %.0f | %.1f | %.0f |\n", who,
        static_cast<long long>(peers), nics_, one_->fewest, one_->most, most, all, one_->verbs->completions,
        one_->verbs->receives, descriptors_, static_cast<long long>(alone_ >> 10),
        static_cast<double>(links_) / static_cast<double>(peers) / 1024,
        static_cast<double>(alone_ + links_) / (1 << 20), static_cast<double>(own_registered_) / 1024);
    std::fflush(stdout);
    Expect(most <= static_cast<int>(Nic::kMaxQueues), StrCat(most, " queue pairs on one NIC"));
    Expect(links_ <= peers * kMostOfLink + all * kMostOfQueuePair,
           StrCat(links_ / peers, " bytes of heap a link"));
  }

 private:
  [[nodiscard]] static LinkId LinkTo(uint32_t other) { return LinkId{other + 1}; }
  static constexpr LinkId kBack{1};

  void Connect(uint32_t i) {
    Process& other = *others_[i];
    const TimePoint deadline = Clock::now() + std::chrono::minutes(5);
    // The trainer speaks first.
    Process& first = part_ == Part::kInference ? other : *one_;
    Process& second = part_ == Part::kInference ? *one_ : other;
    const LinkId at_first = part_ == Part::kInference ? kBack : LinkTo(i);
    const LinkId at_second = part_ == Part::kInference ? LinkTo(i) : kBack;
    const auto as = [&](Process& process, const auto& call) {
      const bool counts = &process == one_.get();
      bool nobody = false;
      const Scope scope(counts ? count_here : nobody);
      return call();
    };
    auto offer = as(first, [&] {
      return first.transport->OpenLink(at_first, Role::kInitiator, second.self, "", deadline);
    });
    Require(offer.ok(), offer.status().message());
    auto answer = as(second, [&] {
      return second.transport->OpenLink(at_second, Role::kResponder, first.self, *offer, deadline);
    });
    Require(answer.ok(), answer.status().message());
    const Status established = as(first, [&] { return first.transport->Establish(at_first, *answer); });
    Require(established.ok(), established.message());
    Process& target = part_ == Part::kInference ? *one_ : other;
    const LinkId at_target = part_ == Part::kInference ? LinkTo(i) : kBack;
    const Status opened = as(target, [&] { return target.transport->OpenGrant(at_target, {1, 1}, {}); });
    Require(opened.ok(), opened.message());
  }

  /// The trainer's chunk, to a place of its own.
  void Write(uint32_t i) {
    const bool here = part_ == Part::kTrainer;
    Process& writer = here ? *one_ : *others_[i];
    Process& target = here ? *others_[i] : *one_;
    const LinkId link = here ? LinkTo(i) : kBack;
    const uint64_t from = here ? i * kChunk : 0;
    std::fill_n(writer.memory.begin() + static_cast<std::ptrdiff_t>(from), kChunk, ByteOf(i));
    bool nobody = false;
    const Scope scope(here ? count_here : nobody);
    Op op;
    op.local = 1;
    op.local_offset = from;
    op.remote = writer.transport->Import(link, target.name, target.memory.size(), target.key).value();
    op.remote_offset = here ? 0 : i * kChunk;
    op.length = kChunk;
    op.has_signal = op.first = true;
    op.grant = {1, 1};
    op.signal = {.grant = {1, 1}, .transfer = 0, .chunk = 0, .chunks = 2, .checksum = 1};  // A record.
    op.cookie = i;
    Require(writer.transport->Post(link, 0, std::span(&op, 1)) == 1, "a lane takes nothing");
  }

  void Compare() const {
    for (uint32_t i = 0; i < others_.size(); ++i) {
      const std::byte* place =
          part_ == Part::kTrainer ? others_[i]->memory.data() : one_->memory.data() + i * kChunk;
      Require(std::all_of(place, place + kChunk, [&](std::byte b) { return b == ByteOf(i); }),
              "other bytes have arrived");
    }
  }
  static std::byte ByteOf(uint32_t i) { return static_cast<std::byte>(i % 251 + 1); }

  template <typename Done>
  void Until(std::string_view what, const Done& done) {
    const TimePoint limit = Clock::now() + std::chrono::minutes(2);
    while (!done()) {
      Require(Clock::now() < limit, StrCat("it takes too long until ", what));
      fabric_.Advance(std::chrono::milliseconds(1));
      {
        const Scope scope(count_here);
        one_->Pump();
      }
      for (const auto& other : others_) other->Pump();
    }
  }

  Part part_;
  int nics_;
  fake::Fabric fabric_{{.virtual_time = true}};
  std::unique_ptr<Process> one_;
  std::vector<std::unique_ptr<Process>> others_;
  size_t descriptors_ = 0;  ///< Of the transport.
  uint64_t own_registered_ = 0;
  int64_t alone_ = 0;  ///< Heap, bytes: of the transport without a link,
  int64_t links_ = 0;  ///< and of all links.
};

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
  Expect(count <= static_cast<int>(Nic::kMaxQueues), StrCat(count, " queue pairs on one NIC"));
  Expect(refused.code() == Code::kExhausted, refused.message());
  fabric.Kill(one.verbs->host());
  fabric.Kill(peer.verbs->host());
}

// --- Whole endpoints

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
  count_all = true;
  const int64_t heap = heap_bytes;
  for (uint32_t rank = 2; rank <= peers; ++rank) connect(rank);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  count_all = false;
  const auto ends = static_cast<double>(2 * (peers - 1));
  const double each = static_cast<double>(Descriptors() - first) / ends;
  std::printf(
      "\nan endpoint over verbs on 1 NIC, and tcp: %zu descriptors, %.2f more and %.0f KiB of heap for"
      " each connection (both ends of %u counted)\n",
      alone, each, static_cast<double>(heap_bytes - heap) / ends / 1024, peers - 1);
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
  return failed ? 1 : 0;
}
