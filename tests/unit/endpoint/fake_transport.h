#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/fd.h"
#include "transport/transport.h"

namespace weightcast::endpoint {

using transport::Event;
using transport::GrantName;
using transport::Limits;
using transport::LinkId;
using transport::Op;
using transport::OpKind;
using transport::RemoteRegion;
using transport::Role;

/// What a test lets go wrong at one end of a fake path.
struct Faults {
  std::string refuse_open{};  ///< OpenLink fails with this text.
  bool never_ready = false;   ///< The link is opened and nothing more comes.
  uint32_t lanes = 2;
  size_t capacity = 8;          ///< Operations that a lane takes before it is full.
  size_t ops_per_progress = 4;  ///< Per lane.
  bool shuffle = false;         ///< Completions come in any order, late.
  bool hold = false;            ///< Operations are taken and do not move.
  bool hold_revoke = false;     ///< Like a stopped writer: Revoked, LinkClosed and Deregistered do not come.
  uint64_t max_length = UINT64_MAX;
};

class FakeTransport;

/// The path between all fake transports of this process, and the lock that all of them share.
class FakeNet {
 public:
  static FakeNet& Get() {
    static FakeNet net;
    return net;
  }
  /// For those created from now on, by transport name.
  std::map<std::string, Faults> defaults;
  std::map<uint64_t, FakeTransport*> ends;
  uint64_t last = 0;
  std::mutex mutex;
  std::mt19937 random{1};

  static void Reset() {
    const std::lock_guard lock(Get().mutex);
    Get().defaults.clear();
  }
  static void SetDefaults(const std::string& name, Faults faults) {
    const std::lock_guard lock(Get().mutex);
    Get().defaults[name] = std::move(faults);
  }
};

/// A transport inside one process that does what the contract says and what Faults add to it. Slow, and
/// strict about misuse (it aborts).
class FakeTransport final : public transport::Transport {
  template <typename Function>
  auto Locked(Function function) const {
    const std::lock_guard lock(net_.mutex);
    return function();
  }

 public:
  FakeTransport(std::string name, const transport::TransportOptions& options)
      : name_(std::move(name)), self_(options.self), fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    const std::lock_guard lock(net_.mutex);
    id_ = ++net_.last;
    net_.ends[id_] = this;
    if (const auto found = net_.defaults.find(name_); found != net_.defaults.end()) faults_ = found->second;
  }
  FakeTransport(const FakeTransport&) = delete;
  FakeTransport& operator=(const FakeTransport&) = delete;
  ~FakeTransport() override {
    const std::lock_guard lock(net_.mutex);
    for (auto& [id, link] : links_) TellPeerDown(link, "the peer is gone");
    net_.ends.erase(id_);
  }

  static Result<std::unique_ptr<Transport>> CreateFast(const transport::TransportOptions& options) {
    return std::unique_ptr<Transport>(std::make_unique<FakeTransport>("fast", options));
  }
  static Result<std::unique_ptr<Transport>> CreateSlow(const transport::TransportOptions& options) {
    return std::unique_ptr<Transport>(std::make_unique<FakeTransport>("slow", options));
  }

  // --- What tests do to it, from any thread -------------------------------------------------
  /// The end of this name that belongs to the endpoint with this incarnation.
  static FakeTransport& Of(Incarnation self, std::string_view name) {
    const std::lock_guard lock(FakeNet::Get().mutex);
    for (auto& [id, end] : FakeNet::Get().ends) {
      if (end->self_ == self && end->name_ == name) return *end;
    }
    std::abort();
  }
  template <typename Change>
  void Set(Change change) {
    const std::lock_guard lock(net_.mutex);
    change(faults_);
    if (!faults_.hold_revoke) {
      for (Event& event : std::exchange(held_, {})) events_.push_back(std::move(event));
    }
    Wake();
  }
  void KillLane(uint32_t lane) {
    const std::lock_guard lock(net_.mutex);
    for (auto& [id, link] : links_) {
      if (lane >= link.lanes.size() || !std::exchange(link.lanes[lane].up, false)) continue;
      for (const Op& op : link.lanes[lane].queue) Complete(id, op, Code::kUnavailable);
      link.lanes[lane].queue.clear();
      events_.push_back(transport::LaneDown{id, lane, {Code::kUnavailable, "killed"}});
      const bool any = std::any_of(link.lanes.begin(), link.lanes.end(), [](const Lane& l) { return l.up; });
      if (!any) events_.push_back(transport::LinkDown{id, {Code::kUnavailable, "killed"}});
    }
    Wake();
  }
  void RaiseLane(uint32_t lane) {
    const std::lock_guard lock(net_.mutex);
    for (auto& [id, link] : links_) {
      if (lane >= link.lanes.size() || std::exchange(link.lanes[lane].up, true)) continue;
      events_.push_back(transport::LaneUp{id, lane});
    }
    Wake();
  }
  /// A signal as a hostile peer might send it, to all links of this end.
  void Inject(const transport::Signal& signal) {
    const std::lock_guard lock(net_.mutex);
    for (auto& [id, link] : links_) events_.push_back(transport::SignalArrived{id, signal});
    Wake();
  }
  size_t posted() const {
    return Locked([&] { return posted_; });
  }
  size_t most_queued() const {
    return Locked([&] { return most_queued_; });
  }
  size_t links() const {
    return Locked([&] { return links_.size(); });
  }
  size_t regions() const {
    return Locked([&] { return regions_.size(); });
  }
  size_t imports() const {
    return Locked([&] {
      size_t count = 0;
      for (const auto& [id, link] : links_) count += link.imports.size();
      return count;
    });
  }
  std::vector<uint64_t> posted_per_lane() const {
    return Locked([&] { return lane_bytes_; });
  }

  // --- The contract ---------------------------------------------------------------------------
  [[nodiscard]] Limits LimitsOf(MemoryKind) const override {
    return {.max_length = Locked([&] { return faults_.max_length; })};
  }
  Result<std::string> Register(const RegionName& name, const DescribedMemory& memory,
                               Access access) override {
    const std::lock_guard lock(net_.mutex);
    if (!regions_.emplace(name.id, Registered{name, memory, access}).second) std::abort();
    return std::string("key");
  }
  void Deregister(uint32_t region) override {
    const std::lock_guard lock(net_.mutex);
    if (regions_.erase(region) != 1) std::abort();
    HoldOrTell(transport::Deregistered{region});
  }
  Result<RemoteRegion> Import(LinkId link, const RegionName& name, uint64_t length,
                              std::string_view key) override {
    const std::lock_guard lock(net_.mutex);
    const auto found = links_.find(link);
    if (found == links_.end() || key != "key") return Status(Code::kUnavailable, "no link or no key");
    const RemoteRegion handle{++last_import_};
    found->second.imports[handle] = {name, length};
    return handle;
  }
  void Release(LinkId link, RemoteRegion region) override {
    const std::lock_guard lock(net_.mutex);
    if (links_.at(link).imports.erase(region) != 1) std::abort();
  }

  Result<std::string> OpenLink(LinkId id, Role role, Incarnation, std::string_view offer,
                               TimePoint) override {
    const std::lock_guard lock(net_.mutex);
    if (!faults_.refuse_open.empty()) return Status(Code::kUnavailable, faults_.refuse_open);
    Link& link = links_.emplace(id, Link{}).first->second;
    link.lanes.resize(faults_.lanes);
    if (role == Role::kResponder) Meet(link, offer);
    ByteWriter blob;
    blob.Put(id_);
    blob.Put(static_cast<uint32_t>(id));
    return blob.Take();
  }
  Status Establish(LinkId id, std::string_view answer) override {
    const std::lock_guard lock(net_.mutex);
    Link& link = links_.at(id);
    Meet(link, answer);
    FakeTransport* peer = PeerOf(link);
    if (peer == nullptr) return {Code::kUnavailable, "the peer is gone"};
    if (!faults_.never_ready) events_.push_back(transport::LinkReady{id, faults_.lanes});
    if (!peer->faults_.never_ready) {
      peer->events_.push_back(transport::LinkReady{link.peer_link, peer->faults_.lanes});
    }
    Wake();
    peer->Wake();
    return Status::Ok();
  }
  void CloseLink(LinkId id) override {
    const std::lock_guard lock(net_.mutex);
    Link& link = links_.at(id);
    for (const Lane& lane : link.lanes) {
      for (const Op& op : lane.queue) Complete(id, op, Code::kCancelled);
    }
    for (Event& late : std::exchange(late_, {})) events_.push_back(std::move(late));
    TellPeerDown(link, "the peer has closed");
    links_.erase(id);
    HoldOrTell(transport::LinkClosed{id});
  }
  [[nodiscard]] std::string Describe(LinkId) const override { return name_ + ": in this process"; }

  Status OpenGrant(LinkId link, const GrantName& grant, transport::GrantReach ranges) override {
    const std::lock_guard lock(net_.mutex);
    if (grant.slot == 0 || grant.slot >= transport::kGrantSlots) std::abort();
    if (!links_.at(link).grants.emplace(grant.slot, grant.id).second) std::abort();
    links_.at(link).reach[grant.slot] = std::move(ranges);
    return Status::Ok();
  }
  void Revoke(LinkId link, const GrantName& grant) override {
    const std::lock_guard lock(net_.mutex);
    if (links_.at(link).grants.erase(grant.slot) != 1) std::abort();
    HoldOrTell(transport::Revoked{link, grant});
  }

  size_t Post(LinkId id, uint32_t lane_index, std::span<const Op> ops) override {
    const std::lock_guard lock(net_.mutex);
    Lane& lane = links_.at(id).lanes.at(lane_index);
    size_t taken = 0;
    while (taken < ops.size() && lane.up && lane.queue.size() < faults_.capacity) {
      lane.queue.push_back(ops[taken]);
      lane_bytes_.resize(std::max<size_t>(lane_bytes_.size(), lane_index + 1));
      lane_bytes_[lane_index] += ops[taken++].length;
    }
    posted_ += taken;
    most_queued_ = std::max(most_queued_, lane.queue.size());
    return taken;
  }
  Progressed Progress(std::span<Event> out) override {
    const std::lock_guard lock(net_.mutex);
    if (!faults_.hold) Work();
    if (faults_.shuffle) ReleaseLate();
    size_t count = 0;
    for (; count < out.size() && !events_.empty(); ++count) {
      out[count] = std::move(events_.front());
      events_.pop_front();
    }
    return {.events = count, .moved = count > 0};
  }
  [[nodiscard]] int fd() const override { return fd_.get(); }
  bool Arm() override {
    const std::lock_guard lock(net_.mutex);
    return events_.empty() && late_.empty() && (faults_.hold || !HasWork());
  }
  void Disarm() override {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t ignored = read(fd_.get(), &count, sizeof count);
  }

 private:
  struct Registered {
    RegionName name;
    DescribedMemory memory;
    Access access{};
  };
  struct Imported {
    RegionName name;
    uint64_t length = 0;
  };
  struct Lane {
    bool up = true;
    std::deque<Op> queue;
  };
  struct Link {
    uint64_t peer = 0;
    LinkId peer_link{};
    std::vector<Lane> lanes;
    std::map<uint32_t, uint64_t> grants;              ///< Open ones, by slot.
    std::map<uint32_t, transport::GrantReach> reach;  ///< Of the last grant of each slot.
    std::map<RemoteRegion, Imported> imports;
  };

  void Wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = write(fd_.get(), &one, sizeof one);
  }
  static void Meet(Link& link, std::string_view blob) {
    ByteReader in(blob);
    link.peer = in.Get<uint64_t>();
    link.peer_link = LinkId{in.Get<uint32_t>()};
  }
  FakeTransport* PeerOf(const Link& link) {
    const auto found = net_.ends.find(link.peer);
    return found == net_.ends.end() || !found->second->links_.contains(link.peer_link) ? nullptr
                                                                                       : found->second;
  }
  void TellPeerDown(const Link& link, const char* why) {
    FakeTransport* peer = PeerOf(link);
    if (peer == nullptr) return;
    peer->events_.push_back(transport::LinkDown{link.peer_link, {Code::kUnavailable, why}});
    peer->Wake();
  }
  void HoldOrTell(Event event) {
    (faults_.hold_revoke ? held_ : events_).push_back(std::move(event));
    Wake();
  }
  void Complete(LinkId id, const Op& op, Code code) {
    (faults_.shuffle ? late_ : events_).push_back(transport::Completion{id, op.cookie, code});
  }
  bool HasWork() const {
    for (const auto& [id, link] : links_) {
      for (const Lane& lane : link.lanes) {
        if (!lane.queue.empty()) return true;
      }
    }
    return false;
  }
  void Work() {
    for (auto& [id, link] : links_) {
      for (Lane& lane : link.lanes) {
        auto& queue = lane.queue;
        for (size_t i = 0; i < faults_.ops_per_progress && !queue.empty(); ++i) {
          const Op op = queue.front();
          queue.pop_front();
          Complete(id, op, Execute(link, op));
        }
      }
    }
  }
  Code Execute(Link& link, const Op& op) {
    FakeTransport* peer = PeerOf(link);
    if (peer == nullptr) return Code::kUnavailable;
    const Link& there = peer->links_.at(link.peer_link);
    if (op.grant.id != 0) {
      const auto grant = there.grants.find(op.grant.slot);
      if (grant == there.grants.end() || grant->second != op.grant.id) return Code::kFenced;
    }
    if (op.kind == OpKind::kWrite && op.grant.id != 0 && link.imports.contains(op.remote)) {
      const auto& reach = there.reach.at(op.grant.slot);
      const RegionName& name = link.imports.at(op.remote).name;
      if (reach != nullptr && !reach->Cover(name.id, name.generation, op.remote_offset, op.length))
        return Code::kPermission;
    }
    if (op.kind != OpKind::kSignal) {
      if (const Code code = Copy(link, *peer, op); code != Code::kOk) return code;
    }
    if (op.has_signal) {
      peer->events_.push_back(transport::SignalArrived{link.peer_link, op.signal});
      peer->Wake();
    }
    return Code::kOk;
  }
  Code Copy(Link& link, FakeTransport& peer, const Op& op) {
    const auto local = regions_.find(op.local);
    const auto import = link.imports.find(op.remote);
    if (local == regions_.end() || import == link.imports.end() || op.length > faults_.max_length)
      std::abort();
    const auto remote = peer.regions_.find(import->second.name.id);
    if (remote == peer.regions_.end() || remote->second.name != import->second.name) return Code::kFenced;
    if (op.local_offset + op.length > local->second.memory.length) std::abort();
    if (op.remote_offset + op.length > remote->second.memory.length) return Code::kOutOfBounds;
    std::byte* const here = local->second.memory.address + op.local_offset;
    std::byte* const far = remote->second.memory.address + op.remote_offset;
    std::memcpy(op.kind == OpKind::kRead ? here : far, op.kind == OpKind::kRead ? far : here, op.length);
    return Code::kOk;
  }
  void ReleaseLate() {
    std::shuffle(late_.begin(), late_.end(), net_.random);
    const size_t count = (late_.size() + 1) / 2;
    for (size_t i = 0; i < count; ++i) {
      events_.push_back(std::move(late_.back()));
      late_.pop_back();
    }
  }

  FakeNet& net_ = FakeNet::Get();
  const std::string name_;
  const Incarnation self_;
  const UniqueFd fd_;
  uint64_t id_ = 0;
  Faults faults_;
  std::map<uint32_t, Registered> regions_;
  std::map<LinkId, Link> links_;
  std::deque<Event> events_;
  std::deque<Event> late_;  ///< Completions to be shuffled.
  std::deque<Event> held_;
  uint32_t last_import_ = 0;
  size_t posted_ = 0;
  size_t most_queued_ = 0;
  std::vector<uint64_t> lane_bytes_;
};

inline constexpr std::array kFakeFactories = {
    transport::TransportFactory{"fast", &FakeTransport::CreateFast},
    transport::TransportFactory{"slow", &FakeTransport::CreateSlow},
};

}  // namespace weightcast::endpoint
