#include "endpoint/core.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/advice.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/process.h"
#include "base/random.h"
#include "base/strings.h"

namespace weightcast::endpoint {
namespace {

using transport::LinkId;
using transport::Role;

constexpr Duration kLinger = std::chrono::seconds(1);
/// At whether a caller inside Connect is to give up.
constexpr Duration kBetweenLooks = std::chrono::milliseconds(100);
/// Sockets that linger: at most this many, and no more than their share of the descriptors.
constexpr size_t kMaxLingering = 1024;
constexpr size_t kLingeringShare = 16;
/// Beyond this only peers that have proven themselves are waited for.
constexpr size_t kMaxUnprovenLingering = 64;
/// Read from one of them before others have their turn.
constexpr int kReadsAtOnce = 16;

size_t MostLingering() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMaxLingering;
  return std::min<size_t>(kMaxLingering, limit.rlim_cur / kLingeringShare);
}

}  // namespace

Core::Core(EndpointOptions options)
    : options_(std::move(options)),
      boot_id_(BootId()),
      forks_(ForkCount()),
      device_memory_(options_.settings),
      regions_(options_.self.incarnation,
               {.submit =
                    [this](std::function<void()> task) {
                      if (!forked()) progress_->Submit(MakeTask(std::move(task)), /*now=*/true);
                    },
                .cancel =
                    [this](const RegisteredMemory& registration) {
                      for (const auto& [id, link] : links_) link.connection->EndUsing(registration);
                    },
                .describe = [this](const Memory& memory) { return device_memory_.Describe(memory); }}) {}

Core::~Core() = default;

bool Core::forked() const { return forks_ != ForkCount(); }

Status Core::Usable() const {
  if (forked()) {
    return {Code::kInternal, "an endpoint cannot be used in a forked child; create a new one there"};
  }
  if (closed_.load(std::memory_order_relaxed)) return ClosedHere("the endpoint");
  return Status::Ok();
}

std::vector<NamedTransport> Core::transports() const {
  std::vector<NamedTransport> all = named_;
  for (NamedTransport& each : all) each.why_not = regions_.WhyLeftOut(each.name);
  return all;
}

// --- Connections -------------------------------------------------------------------------------

Core::ConnectionState Core::FindLive(Incarnation peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(peer);
  return found == live_.end() ? nullptr : found->second;
}

Core::ConnectionState Core::FindMatching(const Identity& expected) const {
  if (expected.role.empty() && expected.incarnation == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(live_.begin(), live_.end(),
                                  [&](const auto& entry) { return Matches(expected, entry.second->peer()); });
  return found == live_.end() ? nullptr : found->second;
}

std::vector<Core::ConnectionState> Core::Live() const {
  const std::lock_guard lock(mutex_);
  std::vector<ConnectionState> all;
  for (const auto& [incarnation, connection] : live_) all.push_back(connection);
  return all;
}

Result<Core::ConnectionState> Core::Connect(const std::vector<std::string>& addresses,
                                            const Identity& expected, TimePoint deadline, std::string key) {
  WC_RETURN_IF_ERROR(Usable());
  if (auto existing = FindMatching(expected); existing != nullptr && existing->usable()) return existing;
  const auto call = std::make_shared<ConnectCall>();
  WC_ASSIGN_OR_RETURN(call->addresses, ResolveAll(addresses));
  call->expected = expected;
  call->deadline = deadline;
  call->key = std::move(key);
  progress_->Submit(MakeTask([this, call] { manager_->Connect(call); }), /*now=*/true);
  WaitForCall(call);
  if (!call->status.ok()) return call->status;
  return call->connection;
}

Key Core::KeyFor(const Identity& peer) const {
  if (!options_.key_of) return {Key::Of::kJob, peers_key_};
  return {Key::Of::kPair, options_.key_of(peer)};
}

/// The call has its own limit.
void Core::WaitForCall(const std::shared_ptr<ConnectCall>& call) {
  const auto& interrupted = options_.interrupted;
  if (!interrupted) {
    progress_->WaitFor(call->done, 1, kNever);
    return;
  }
  while (!progress_->WaitFor(call->done, 1, In(kBetweenLooks))) {
    if (!interrupted()) continue;
    progress_->Call([&] { manager_->Interrupt(call); });
    return;
  }
}

void Core::OnProven(Proven proven) {
  if (closed_.load()) return;
  const Incarnation peer = proven.hello.identity.incarnation;
  const Role role = proven.role;
  const auto connection = std::make_shared<Connection::State>(shared_from_this(), std::move(proven));
  ConnectionState replaced;
  {
    const std::lock_guard lock(mutex_);
    replaced = std::exchange(live_[peer], connection);
  }
  // The peer knows of one connection only: the newer.
  if (replaced != nullptr) {
    replaced->End({Code::kUnavailable, role == Role::kResponder
                                           ? "replaced: the peer has connected again; use the new connection"
                                           : "replaced by a new connection; use that"});
  }
  connection->Start();
}

void Core::OnConnectionReady(const ConnectionState& connection, Role role) {
  manager_->OnConnectionReady(connection);
  if (role == Role::kResponder && options_.on_connection) {
    Later([on_connection = options_.on_connection, connection] { on_connection(Connection(connection)); });
  }
}

void Core::OnConnectionEnded(const ConnectionState& connection, const Status& reason) {
  const Identity& peer = connection->peer();
  {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(peer.incarnation);
    if (found != live_.end() && found->second == connection) live_.erase(found);
  }
  if (!connection->was_ready()) return manager_->OnConnectionLost(peer.incarnation, reason);
  if (options_.on_disconnect) {
    Later([on_disconnect = options_.on_disconnect, peer, reason] { on_disconnect(peer, reason); });
  }
}

void Core::OnNotice(const ConnectionState& connection) {
  if (!options_.on_notice) return;
  Later([on_notice = options_.on_notice, connection] { on_notice(Connection(connection)); });
}

void Core::Linger(Channel channel, bool proven) {
  // What does not fit into the socket now will not be waited for.
  const size_t most = proven ? MostLingering() : std::min(MostLingering(), kMaxUnprovenLingering);
  if (channel.waiting() || lingering_.size() >= most || shutdown(channel.fd(), SHUT_WR) != 0) return;
  const uint64_t id = ++last_lingering_;
  auto key = sockets_->Watch(channel.fd(), EPOLLIN, [this, id](uint32_t) { ReadLingering(id); });
  if (!key.ok()) return;
  Lingering& entry = lingering_.emplace(id, Lingering{std::move(channel), *key, {}}).first->second;
  entry.limit = timers_.Add(In(kLinger), [this, id] { EndLingering(lingering_.find(id)); });
}

void Core::ReadLingering(uint64_t id) {
  const auto found = lingering_.find(id);
  std::array<char, 4096> ignored;
  ssize_t count = 1;
  for (int i = 0; i < kReadsAtOnce && count > 0; ++i) {
    count = recv(found->second.channel.fd(), ignored.data(), ignored.size(), MSG_DONTWAIT);
  }
  if (count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR))) return;
  EndLingering(found);
}

void Core::EndLingering(std::map<uint64_t, Lingering>::iterator ended) {
  sockets_->Forget(ended->second.key);
  timers_.Cancel(ended->second.limit);
  lingering_.erase(ended);
}

// --- Links and transports ------------------------------------------------------------------------

LinkId Core::AddLink(transport::Transport* transport, ConnectionState connection) {
  const LinkId id{++last_link_};
  links_.emplace(id, Link{transport, std::move(connection)});
  if (!transport->ArmingIsCostly()) ++cheap_links_;
  return id;
}

void Core::CloseLink(LinkId link) {
  if (const auto found = links_.find(link); found != links_.end()) found->second.transport->CloseLink(link);
}

Result<transport::RemoteRegion> Core::ImportAt(transport::Transport& transport, LinkId link,
                                               const RegionName& name, uint64_t length,
                                               std::string_view key) {
  const std::shared_lock lock(transports_mutex_);
  if (transports_.empty()) return ClosedHere("the endpoint");
  return transport.Import(link, name, length, key);
}

void Core::ReleaseImport(LinkId link, transport::RemoteRegion region) {
  if (forked()) return;
  progress_->Submit(MakeTask([this, link, region] {
                      if (const auto found = links_.find(link); found != links_.end()) {
                        found->second.transport->Release(link, region);
                      }
                    }),
                    /*now=*/true);
}

void Core::WantPump(const ConnectionState& connection) {
  if (connection->ended() || !connection->wants_pump() || std::exchange(connection->listed, true)) return;
  pumping_.push_back(connection);
}

bool Core::PumpAll() {
  bool moved = false;
  for (size_t i = 0; i < pumping_.size();) {
    Connection::State& connection = *pumping_[i];
    if (!connection.ended()) moved |= connection.Pump();
    if (!connection.ended() && connection.wants_pump()) {
      ++i;
      continue;
    }
    connection.listed = false;
    pumping_[i] = std::move(pumping_.back());
    pumping_.pop_back();
  }
  return moved;
}

bool Core::Step(bool sockets) {
  bool moved = false;
  if (sockets) {
    // Sockets before timers: a peer is not silent whose words only wait to be read.
    moved |= sockets_->Handle();
    moved |= timers_.RunDue(Clock::now());
  }
  moved |= PumpAll();
  bool events = false;
  for (const auto& transport : transports_) {
    const auto progressed = transport->Progress(events_);
    for (size_t i = 0; i < progressed.events; ++i) Dispatch(events_[i]);
    events |= progressed.events > 0;
    moved |= progressed.moved;
  }
  if (events) PumpAll();
  return moved || events;
}

void Core::Reap(transport::Transport& transport) {
  while (const size_t count = transport.Reap(events_)) {
    for (size_t i = 0; i < count; ++i) Dispatch(events_[i]);
  }
}

bool Core::Arm() {
  bool settled = true;
  for (const auto& transport : transports_) settled &= transport->Arm();
  return settled;
}

void Core::Disarm() {
  for (const auto& transport : transports_) transport->Disarm();
}

void Core::Dispatch(const transport::Event& event) {
  std::visit([this](const auto& of_kind) { Handle(of_kind); }, event);
}

template <typename OfLink>
void Core::Handle(const OfLink& event) {
  const auto found = links_.find(event.link);
  if (found == links_.end()) return;
  const auto [transport, connection] = found->second;
  connection->On(event);
  if constexpr (std::is_same_v<OfLink, transport::LinkClosed>) {
    if (!transport->ArmingIsCostly()) --cheap_links_;
    links_.erase(event.link);
    CheckFenced();
  } else {
    WantPump(connection);  // Lost chunks go out again.
  }
}

void Core::Handle(const transport::Deregistered& event) {
  regions_.OnDeregistered(event.region);
  CheckFenced();
}

// --- End -----------------------------------------------------------------------------------------

void Core::Shutdown() {
  if (forked()) return;
  closed_.store(true);
  progress_->Call([this] { CloseAll(); });
  if (!progress_->WaitFor(fenced_, 1, In(settings().lease))) {
    WC_LOG(kWarning,
           "closing the endpoint while a stopped peer may still write: its links did not close within ",
           Seconds(settings().lease), " s; do not reuse its memory before that peer continues or has ended");
  }
  progress_->Call([this] {
    DropTransports();
    DropCallbacks();
  });
  progress_->Stop();
}

/// They may keep connections, each of which keeps this endpoint's state.
void Core::DropCallbacks() {
  options_.on_connection = nullptr;
  options_.on_disconnect = nullptr;
  options_.on_notice = nullptr;
}

void Core::CloseAll() {
  manager_->Stop();
  for (const auto& connection : Live()) connection->End(ClosedHere("the endpoint"));
  regions_.CloseAll();
  CheckFenced();
}

void Core::CheckFenced() {
  if (closed_.load() && links_.empty() && regions_.open() == 0) fenced_.Set(1);
}

void Core::DropTransports() {
  // What is unread when a socket closes would reset it, and the shutdown message could be lost with it.
  for (auto next = lingering_.begin(); next != lingering_.end();) ReadLingering((next++)->first);
  while (!lingering_.empty()) EndLingering(lingering_.begin());
  sockets_->Forget(transports_key_);
  {
    const std::lock_guard lock(transports_mutex_);
    transports_.clear();
  }
  regions_.SetTransports({});
  // What is left is of peers that are stopped: the transports no longer touch our memory.
  cheap_links_ = 0;
  for (auto& [id, link] : std::exchange(links_, {})) link.connection->Abandon();
  pumping_.clear();
}

}  // namespace weightcast::endpoint
