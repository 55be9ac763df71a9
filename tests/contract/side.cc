#include "contract/side.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/random.h"
#include "base/strings.h"
#include "memory/registration_cache.h"

namespace weightcast::transport {

void Require(bool condition, std::string_view what) {
  if (condition) return;
  std::fprintf(stderr, "contract broken: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

Settings TestSettings() {
  Settings settings;
  settings.lease = std::chrono::seconds(2);
  settings.bind = "127.0.0.1";
  // The devices that tests/rdma has made for this run.
  if (const char* nics = std::getenv("WC_TEST_NICS"); nics != nullptr) settings.nics = nics;
  return settings;
}

TestDevices* TestDevices::current_ = nullptr;

TestMemory::TestMemory(size_t size, TestPlace place) {
  if (IsDevice(place)) {
    Require(TestDevices::current() != nullptr, "device memory needs devices in use");
    const Memory made = TestDevices::current()->Allocate(size, place == TestPlace::kDevice);
    memory_ = {
        .kind = made.kind, .ordinal = made.device, .address = made.address, .length = size, .allocation = {}};
    return;
  }
  if (place == TestPlace::kShared) {
    auto made = Allocate(size);
    Require(made.ok(), made.status().message());
    buffer_ = std::move(made).value();
    bytes_ = buffer_->bytes();
  } else {
    owned_ = std::make_unique<std::byte[]>(size);
    bytes_ = {owned_.get(), size};
  }
  memory_ = DescribeHostMemory(bytes_, FindShared(bytes_));
}

TestMemory::TestMemory(TestMemory&& other) noexcept
    : buffer_(std::move(other.buffer_)),
      owned_(std::move(other.owned_)),
      bytes_(std::exchange(other.bytes_, {})),
      memory_(std::exchange(other.memory_, {})) {}

TestMemory::~TestMemory() {
  if (on_device()) TestDevices::current()->Free(given());
}

Memory TestMemory::given() const {
  return {
      .kind = memory_.kind, .device = memory_.ordinal, .address = memory_.address, .length = memory_.length};
}

std::span<const std::byte> TestMemory::Read(size_t offset, size_t length) const {
  if (!on_device()) return bytes_.subspan(offset, length);
  read_.resize(length);
  TestDevices::current()->Read(given(), offset, read_);
  return read_;
}

void TestMemory::Fill(uint64_t seed) const {
  std::vector<std::byte> filled(on_device() ? size() : 0);
  const std::span<std::byte> to = on_device() ? std::span(filled) : bytes_;
  for (size_t at = 0; at < to.size(); at += 8) {
    uint64_t word = (at / 8 + 1) * 0x9e3779b97f4a7c15U ^ (seed + 1) * 0xbf58476d1ce4e5b9U;
    word ^= word >> 29;
    std::memcpy(&to[at], &word, std::min<size_t>(8, to.size() - at));
  }
  if (on_device()) TestDevices::current()->Write(given(), 0, filled);
}

void TestMemory::Wipe(size_t length) const {
  if (on_device()) return TestDevices::current()->Set(given(), 0, kWiped, length);
  std::memset(bytes_.data(), static_cast<int>(kWiped), length);
}

bool TestMemory::Wiped() const {
  // Every byte equals the next, and the first is right.
  const auto found = Read();
  return found[0] == kWiped && std::memcmp(&found[0], &found[1], found.size() - 1) == 0;
}

bool SameBytes(std::span<const std::byte> x, std::span<const std::byte> y) {
  return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size()) == 0);
}

Side::Side(const TransportFactory& factory) : Side(factory, TestSettings()) {}

Side::Side(const TransportFactory& factory, const Settings& settings) : self_(RandomId()), events_(64) {
  auto made = factory.create(TransportOptions{.settings = settings, .self = self_});
  Require(made.ok(), made.status().message());
  transport_ = std::move(made).value();
}

Described Side::Register(const TestMemory& memory, Access access) {
  return RegisterAs(++last_region_, ++last_generation_, memory, access);
}

Described Side::RegisterAs(uint32_t id, uint32_t generation, const TestMemory& memory, Access access) {
  const RegionName name{.owner = self_, .id = id, .generation = generation};
  auto key = transport_->Register(name, memory.memory(), access);
  Require(key.ok(), key.status().message());
  deregistered.erase(id);
  return {name, memory.memory().length, std::move(key).value()};
}

RemoteRegion Side::Import(LinkId link, const Described& region) {
  auto imported = transport_->Import(link, region.name, region.length, region.key);
  Require(imported.ok(), imported.status().message());
  return *imported;
}

size_t Side::Pump() {
  const auto [count, moved] = transport_->Progress(events_);
  last_moved = moved;
  Require(count <= events_.size(), "Progress filled more events than it was given");
  for (size_t i = 0; i < count; ++i) Take(events_[i]);
  return count;
}

void Side::Take(Event& event) {
  if (auto* completion = std::get_if<Completion>(&event)) {
    const auto found = pending_.find(completion->cookie);
    Require(found != pending_.end(), "a completion of an unknown or completed operation");
    Require(found->second == completion->link, "a completion with another link's id");
    pending_.erase(found);
    completions[completion->cookie] = *completion;
  } else if (auto* signal = std::get_if<SignalArrived>(&event)) {
    Require(!closed.contains(signal->link), "a signal after LinkClosed");
    for (const GrantName& grant : revoked)
      Require(!(grant == signal->signal.grant), "a signal of a grant after Revoked");
    signals.push_back(*signal);
  } else if (auto* up = std::get_if<LinkReady>(&event)) {
    Require(up->lanes > 0 && !ready.contains(up->link), "LinkReady twice or without lanes");
    ready[up->link] = up->lanes;
    closed.erase(up->link);
  } else if (auto* lane = std::get_if<LaneDown>(&event)) {
    Require(!lane->reason.ok() && !lane->reason.message().empty(), "LaneDown without a reason");
    lanes_down.push_back(*lane);
  } else if (auto* lane_up = std::get_if<LaneUp>(&event)) {
    lanes_up.push_back(*lane_up);
  } else if (auto* link_down = std::get_if<LinkDown>(&event)) {
    Require(!link_down->reason.ok() && !link_down->reason.message().empty(), "LinkDown without a reason");
    Require(!down.contains(link_down->link), "LinkDown twice");
    down[link_down->link] = link_down->reason;
  } else if (auto* fenced = std::get_if<Revoked>(&event)) {
    revoked.push_back(fenced->grant);
  } else if (auto* gone = std::get_if<LinkClosed>(&event)) {
    for (const auto& [cookie, link] : pending_)
      Require(link != gone->link, "LinkClosed before its operations had completed");
    closed.insert(gone->link);
    ready.erase(gone->link);
    down.erase(gone->link);
  } else if (auto* region = std::get_if<Deregistered>(&event)) {
    Require(deregistered.insert(region->region).second, "Deregistered twice");
  }
}

uint64_t Side::Post(LinkId link, uint32_t lane, Op op) {
  std::vector<Op> ops{op};
  const auto deadline = Clock::now() + kPatience;
  while (TryPost(link, lane, ops) == 0) {
    Require(Clock::now() < deadline, "the transport stays full");
    Pump();
    if (partner != nullptr) partner->Pump();
  }
  return ops.front().cookie;
}

size_t Side::TryPost(LinkId link, uint32_t lane, std::vector<Op>& ops) {
  for (Op& op : ops) op.cookie = ++last_cookie_;
  const size_t taken = transport_->Post(link, lane, ops);
  Require(taken <= ops.size(), "Post took more than it was given");
  for (size_t i = 0; i < taken; ++i) pending_[ops[i].cookie] = link;
  return taken;
}

void Side::Forget() {
  completions.clear();
  signals.clear();
  lanes_down.clear();
  lanes_up.clear();
}

bool PumpUntil(std::initializer_list<Side*> sides, const std::function<bool()>& done, Duration patience) {
  const auto deadline = Clock::now() + patience;
  while (!done()) {
    if (Clock::now() > deadline) return false;
    for (Side* side : sides) side->Pump();
  }
  return true;
}

void PumpFor(std::initializer_list<Side*> sides, Duration duration) {
  PumpUntil(sides, [] { return false; }, duration);
}

Pair::Pair(const TransportFactory& factory) : Pair(factory, TestSettings()) {}
Pair::Pair(const TransportFactory& factory, const Settings& settings)
    : a(factory, settings), b(factory, settings) {
  a.partner = &b;
  b.partner = &a;
}

Pair::~Pair() {
  a.transport().CloseLink(kA);
  b.transport().CloseLink(kB);
  const auto closed = [](const Side& side, LinkId link) { return !side.ready.contains(link); };
  PumpUntil({&a, &b}, [&] { return closed(a, kA) && closed(b, kB); }, std::chrono::seconds(1));
}

bool Pair::Connect() {
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  auto offer = a.transport().OpenLink(kA, Role::kInitiator, b.self(), "", deadline);
  Require(offer.ok(), offer.status().message());
  auto answer = b.transport().OpenLink(kB, Role::kResponder, a.self(), *offer, deadline);
  Require(answer.ok(), answer.status().message());
  const Status established = a.transport().Establish(kA, *answer);
  Require(established.ok(), established.message());
  return Until([&] { return a.ready.contains(kA) && b.ready.contains(kB); });
}

}  // namespace weightcast::transport
