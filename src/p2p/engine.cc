#include "p2p/engine.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/advice.h"
#include "base/log.h"
#include "base/socket.h"
#include "base/strings.h"

// An engine's beginning and end, and its channels.
namespace weightcast::p2p {
namespace {

constexpr const char* kRole = "p2p";
constexpr Duration kOneAttempt = std::chrono::seconds(3);

Status Admit(const Identity& peer) {
  if (peer.role == kRole) return Status::Ok();
  return {Code::kPermission, StrCat(ToString(peer), " is not a weightcast.p2p endpoint; check the address")};
}

EndpointOptions EndpointOptionsOf(const EngineOptions& options) {
  EndpointOptions made;
  made.self = {.job = options.settings.job, .role = kRole, .engine = "", .rank = options.rank};
  made.token = options.token;
  made.settings = options.settings;
  made.admit = Admit;
  return made;
}

/// On the port where scripts look, if that is free.
Result<std::unique_ptr<Endpoint>> CreateEndpoint(EndpointOptions options, const EngineOptions& from) {
  if (!from.settings.port_range.empty()) return Endpoint::Create(std::move(options));
  EndpointOptions first = options;
  first.port = static_cast<uint16_t>(kFirstPort + from.gpu.index);
  auto endpoint = Endpoint::Create(std::move(first));
  if (endpoint.ok()) return endpoint;
  WC_LOG(kInfo, "p2p: port ", kFirstPort + from.gpu.index, " is not available (", endpoint.status().message(),
         "); any other is taken");
  return Endpoint::Create(std::move(options));
}

}  // namespace

std::string NameOf(const Peer& peer) {
  return StrCat("the p2p endpoint of rank ", peer.connection.peer().rank, " at ", peer.connection.address());
}

Engine::Engine(EngineOptions options) : options_(std::move(options)) { self_->engine = this; }

Result<std::unique_ptr<Engine>> Engine::Create(EngineOptions options) {
  if (options.gpu.index < 0 || options.gpu.index > UINT16_MAX - kFirstPort)
    return Status(Code::kInvalidArgument,
                  StrCat("no GPU can have the index ", options.gpu.index, "; count from 0"));
  std::unique_ptr<Engine> engine(new Engine(std::move(options)));
  EndpointOptions made = EndpointOptionsOf(engine->options_);
  made.on_notice = [self = engine.get()](Connection connection) { self->OnNotice(std::move(connection)); };
  made.on_disconnect = [self = engine.get()](const Identity& peer, const Status&) {
    self->OnDisconnect(peer);
  };
  const std::lock_guard lock(engine->mutex_);  // Peers may knock at once.
  WC_ASSIGN_OR_RETURN(engine->endpoint_, CreateEndpoint(std::move(made), engine->options_));
  return engine;
}

Engine::~Engine() {
  {
    const std::lock_guard lock(self_->mutex);
    self_->engine = nullptr;
  }
  // Memory that operations and tables hold is let go of last, once the endpoint has closed it.
  std::map<uint64_t, std::shared_ptr<Memory>> memories;
  std::map<uint64_t, OperationPtr> operations;
  std::unique_ptr<Endpoint> endpoint;
  {
    const std::lock_guard lock(mutex_);
    const Status reason = ClosedHere("the endpoint");
    const auto peers = peers_;
    for (const auto& [incarnation, peer] : peers) Lose(peer, reason);
    memories = memories_;
    operations.swap(operations_);
    endpoint = std::move(endpoint_);
  }
  endpoint.reset();  // Ends its thread: no callback comes from here on.
}

EngineMetadata Engine::metadata() const {
  return {.incarnation = endpoint_->self().incarnation,
          .rank = options_.rank,
          .gpu = options_.gpu,
          .addresses = endpoint_->Addresses()};
}

// --- Connections -------------------------------------------------------------------------------------

Result<Connection> Engine::ConnectTo(const std::vector<std::string>& addresses, const Identity& expected,
                                     TimePoint deadline, const Interrupted& interrupted) {
  while (true) {
    const TimePoint now = Clock::now();
    auto connection = endpoint_->Connect(addresses, expected, std::min(deadline, now + kOneAttempt));
    if (connection.ok()) return connection;
    const Code code = connection.status().code();
    const bool may_come = code == Code::kUnavailable || code == Code::kTimedOut;
    if (!may_come || Clock::now() + kGlance >= deadline) return connection;
    if (interrupted && interrupted()) return InterruptedCall(StrCat("connecting to ", ToString(expected)));
    std::this_thread::sleep_for(kGlance);  // It may not have begun to listen.
  }
}

PeerPtr Engine::PeerOf(const Connection& connection) {
  const Incarnation incarnation = connection.peer().incarnation;
  if (const auto found = peers_.find(incarnation); found != peers_.end()) {
    const PeerPtr known = found->second;
    const Status status = known->connection.status();
    if (status.ok()) return known;
    Lose(known, status);  // Its end has not been told yet, and another connection is there already.
  }
  auto peer = std::make_shared<Peer>(connection);
  peer->lower = endpoint_->self().incarnation < incarnation;
  peers_[incarnation] = peer;
  return peer;
}

Status Engine::LoseIfEnded(const PeerPtr& peer) {
  Status status = peer->connection.status();
  if (!status.ok()) Lose(peer, status);
  return status;
}

void Engine::OnDisconnect(const Identity& identity) {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(identity.incarnation);
  if (found == peers_.end()) return;
  const Status status = found->second->connection.status();
  if (!status.ok()) Lose(PeerPtr(found->second), status);
}

void Engine::Lose(const PeerPtr& peer, const Status& reason) {
  if (!peer->lost.ok()) return;
  peer->lost = reason;
  peers_.erase(peer->connection.peer().incarnation);
  outbox_.Drop(peer->connection.peer().incarnation);
  for (const OperationPtr& operation : std::exchange(peer->describing, {})) Finish(*operation, reason);
  const auto channels = std::exchange(peer->channels, {});
  for (const auto& [wire, channel] : channels) EndChannel(*channel, reason);
  peer->without_grant.clear();
  peer->connection.Close();
}

// --- Channels ----------------------------------------------------------------------------------------

ChannelPtr Engine::AddChannel(const PeerPtr& peer, uint64_t wire, Gpu gpu) {
  auto channel = std::make_shared<Channel>();
  channel->id = ++last_channel_;
  channel->wire = wire;
  channel->peer = peer;
  channel->gpu = std::move(gpu);
  peer->channels[wire] = channel;
  channels_[channel->id] = channel;
  return channel;
}

Result<uint64_t> Engine::OpenChannel(const Connection& connection, bool by_index) {
  const std::lock_guard lock(mutex_);
  const PeerPtr peer = PeerOf(connection);
  // Its end may have been told before this engine knew of it. From now on it will be.
  WC_RETURN_IF_ERROR(LoseIfEnded(peer));
  const uint64_t wire = (++peer->opened << 1) | (peer->lower ? 0U : 1U);
  ChannelPtr channel = AddChannel(peer, wire, {});
  Open open{.channel = wire, .gpu = options_.gpu};
  open.gpu.by_index = by_index;
  Tell(*peer, open);
  return channel->id;
}

ChannelPtr Engine::SharedChannel(const PeerPtr& peer) {
  // Whoever closes it goes on to the next number, here and there: what is still said of it names nothing.
  const uint64_t wire = kSharedChannel + peer->shared_generation;
  const auto found = peer->channels.find(wire);
  return found != peer->channels.end() ? found->second : AddChannel(peer, wire, {});
}

Result<uint64_t> Engine::Connect(const std::string& host, uint16_t port, bool by_index, TimePoint deadline,
                                 const Interrupted& interrupted) {
  const std::string address =
      host.find(':') == std::string::npos ? StrCat(host, ":", port) : StrCat("[", host, "]:", port);
  Identity anyone;
  anyone.job = options_.settings.job;
  WC_ASSIGN_OR_RETURN(const Connection connection, ConnectTo({address}, anyone, deadline, interrupted));
  return OpenChannel(connection, by_index);
}

Result<Connection> Engine::ConnectExactly(const EngineMetadata& peer, TimePoint deadline,
                                          const Interrupted& interrupted) {
  if (peer.incarnation == endpoint_->self().incarnation)
    return Status(Code::kInvalidArgument, "this is the endpoint's own metadata; connect to the other's");
  const Identity expected{.job = options_.settings.job,
                          .role = kRole,
                          .engine = "",
                          .rank = peer.rank,
                          .incarnation = peer.incarnation};
  return ConnectTo(peer.addresses, expected, deadline, interrupted);
}

Result<uint64_t> Engine::Connect(const EngineMetadata& peer, bool by_index, TimePoint deadline,
                                 const Interrupted& interrupted) {
  WC_ASSIGN_OR_RETURN(const Connection connection, ConnectExactly(peer, deadline, interrupted));
  return OpenChannel(connection, by_index);
}

Result<uint64_t> Engine::Shared(const EngineMetadata& peer, TimePoint deadline,
                                const Interrupted& interrupted) {
  WC_ASSIGN_OR_RETURN(const Connection connection, ConnectExactly(peer, deadline, interrupted));
  const std::lock_guard lock(mutex_);
  const PeerPtr known = PeerOf(connection);
  WC_RETURN_IF_ERROR(LoseIfEnded(known));
  const ChannelPtr channel = SharedChannel(known);
  channel->gpu = peer.gpu;
  return channel->id;
}

Result<Accepted> Engine::Accept(std::optional<TimePoint> deadline, const Interrupted& interrupted) {
  std::unique_lock lock(mutex_);
  while (to_accept_.empty()) {
    const TimePoint now = Clock::now();
    if (deadline && now >= *deadline)
      return Status(Code::kTimedOut,
                    "no peer has connected to this endpoint within the timeout of this call; check that one "
                    "runs and connects here, then accept again");
    changed_.wait_until(lock, deadline ? std::min(*deadline, now + kGlance) : now + kGlance);
    if (!to_accept_.empty()) break;
    lock.unlock();  // It may run other code, which may call us.
    if (interrupted && interrupted()) return InterruptedCall("accept");
    lock.lock();
  }
  const ChannelPtr channel = to_accept_.front();
  to_accept_.pop_front();
  WC_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(channel->peer->connection.address()));
  return Accepted{.channel = channel->id, .host = address.host, .gpu = channel->gpu};
}

Status Engine::CloseChannel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = channels_.find(id);
  if (found == channels_.end())
    return {Code::kInvalidArgument,
            StrCat("there is no connection ", id, "; use a number that connect or accept returned")};
  const ChannelPtr channel = found->second;
  if (channel->status.ok()) {
    TakeOff(*channel);
    Tell(*channel->peer, Close{.channel = channel->wire});
    EndChannel(*channel, {Code::kCancelled,
                          StrCat("this process removed connection ", id, "; connect again to go on")});
  }
  channels_.erase(id);
  return Status::Ok();
}

bool Engine::HasChannel(uint64_t id) const {
  const std::lock_guard lock(mutex_);
  return channels_.contains(id);
}

/// Off its peer's table.
void Engine::TakeOff(Channel& channel) {
  Peer& peer = *channel.peer;
  if (channel.wire >= kSharedChannel) ++peer.shared_generation;
  peer.channels.erase(channel.wire);
}

void Engine::EndChannel(Channel& channel, const Status& reason) {
  channel.status = reason;
  for (const auto& [number, offered] : channel.offers) channel.peer->offered -= offered.offer.slices.size();
  channel.offers.clear();
  channel.abandoned.clear();
  const auto sending = channel.sending;
  for (const auto& [number, send] : sending) EndUnfinished(*send, reason);
  const auto one_sided = channel.one_sided;
  for (const auto& [number, operation] : one_sided) EndUnfinished(*operation, reason);
  const auto receiving = channel.receiving;
  for (const auto& [number, receive] : receiving) EndReceive(receive, reason);
  // The script never had the number of one that it has not accepted.
  if (std::erase_if(to_accept_, [&](const ChannelPtr& waiting) { return waiting.get() == &channel; }) > 0)
    channels_.erase(channel.id);
  changed_.notify_all();
}

/// A send, a read or a write. Transfers over a lost connection end by themselves, with its reason.
void Engine::EndUnfinished(Operation& operation, const Status& reason) {
  if (!operation.transfer || operation.asked) return Finish(operation, reason);
  if (operation.reason.ok()) operation.reason = reason;
  if (operation.channel->peer->lost.ok()) operation.transfer->Cancel();
}

Result<ChannelPtr> Engine::Usable(uint64_t id) const {
  const auto found = channels_.find(id);
  if (found == channels_.end())
    return Status(Code::kInvalidArgument,
                  StrCat("there is no connection ", id, "; use a number that connect or accept returned"));
  if (!found->second->status.ok()) return found->second->status;
  return found->second;
}

std::optional<uint64_t> Engine::ChannelTo(uint32_t rank) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [incarnation, peer] : peers_) {
    if (peer->connection.peer().rank != rank || peer->channels.empty()) continue;
    return peer->channels.rbegin()->second->id;  // The shared one has the greatest number.
  }
  return std::nullopt;
}

}  // namespace weightcast::p2p
