#include "p2p/engine.h"

#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/log.h"
#include "base/socket.h"
#include "base/strings.h"

namespace weightcast::p2p {
namespace {

Status Admit(const Identity& peer) {
  if (peer.role == kRole) return Status::Ok();
  return Error(Code::kPermission, ToString(peer),
               " is not a weightcast.p2p endpoint; check the address that was connected to");
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

/// A caller who polls again within this does nothing but poll.
constexpr Duration kAtOnce = std::chrono::microseconds(50);
/// Such a poll waits for as long as this. Setting a shorter timer costs a virtual machine more than it saves.
constexpr Duration kMoment = std::chrono::milliseconds(1);

Status NoSuchOperation(uint64_t number) {
  return Error(Code::kInvalidArgument, "there is no operation ", number,
               ", or its end was reported already; wait for each number that a call returned once only");
}

Status CheckAdvert(const Advert& advert, uint64_t length, const Peer& peer) {
  if (advert.owner != peer.connection.peer().incarnation) {
    return Error(Code::kInvalidArgument, "the advertised memory is not of the peer of this connection, ",
                 NameOf(peer), "; pass on what that process has advertised since it started");
  }
  if (length > advert.length)
    return Error(Code::kOutOfBounds, length, " bytes were asked for, and ", NameOf(peer),
                 " advertised memory of ", advert.length, " bytes; let that endpoint advertise as many");
  return Status::Ok();
}

}  // namespace

Engine::Engine(EngineOptions options) : options_(std::move(options)) {}

Result<std::unique_ptr<Engine>> Engine::Create(EngineOptions options) {
  if (options.gpu.index < 0 || options.gpu.index > UINT16_MAX - kFirstPort)
    return Error(Code::kInvalidArgument, "the GPU index (local_gpu_idx) is ", options.gpu.index,
                 "; give one in [0, ", UINT16_MAX - kFirstPort, "]");
  std::unique_ptr<Engine> engine(new Engine(std::move(options)));
  EndpointOptions made = EndpointOptionsOf(engine->options_);
  Peers& peers = engine->peers_;
  made.on_notice = [&peers](Connection connection) { peers.OnNotice(std::move(connection)); };
  made.on_disconnect = [&peers](const Identity& peer, const Status&) { peers.OnDisconnect(peer); };
  const std::lock_guard lock(engine->s_.mutex);  // Peers may knock at once.
  WC_ASSIGN_OR_RETURN(engine->s_.endpoint, CreateEndpoint(std::move(made), engine->options_));
  return engine;
}

Engine::~Engine() {
  operations_.ForgetStreams();
  // Memory that operations and tables hold is let go of last, once the endpoint has closed it.
  std::map<uint64_t, MemoryPtr> memories;
  std::map<uint64_t, OperationPtr> operations;
  std::unique_ptr<Endpoint> endpoint;
  {
    const std::lock_guard lock(s_.mutex);
    const Status reason = ClosedHere("the endpoint");
    const auto peers = s_.peers;
    for (const auto& [incarnation, peer] : peers) peers_.Lose(peer, reason);
    memories = s_.memories;
    operations.swap(s_.operations);
    endpoint = std::move(s_.endpoint);
  }
  endpoint.reset();  // Ends its thread: no callback comes from here on.
}

EngineMetadata Engine::metadata() const {
  return {.incarnation = s_.endpoint->self().incarnation,
          .rank = options_.rank,
          .gpu = options_.gpu,
          .addresses = s_.endpoint->Addresses()};
}

// --- Channels ----------------------------------------------------------------------------------------

Result<uint64_t> Engine::OpenChannel(const Connection& connection, bool by_index) {
  const std::lock_guard lock(s_.mutex);
  const PeerPtr peer = peers_.PeerOf(connection);
  // Its end may have been told before this engine knew of it. From now on it will be.
  WC_RETURN_IF_ERROR(peers_.LoseIfEnded(peer));
  const uint64_t wire = (++peer->opened << 1) | (peer->lower ? 0U : 1U);
  ChannelPtr channel = peers_.AddChannel(peer, wire, {});
  Open open{.channel = wire, .gpu = options_.gpu};
  open.gpu.by_index = by_index;
  s_.Send(*peer, open);
  return channel->id;
}

Result<uint64_t> Engine::Connect(const std::string& host, uint16_t port, bool by_index, TimePoint deadline,
                                 const Interrupted& interrupted) {
  const std::string address =
      host.find(':') == std::string::npos ? StrCat(host, ":", port) : StrCat("[", host, "]:", port);
  Identity anyone;
  anyone.job = s_.job;
  WC_ASSIGN_OR_RETURN(const Connection connection,
                      peers_.ConnectTo({address}, anyone, deadline, interrupted));
  return OpenChannel(connection, by_index);
}

Result<uint64_t> Engine::Connect(const EngineMetadata& peer, bool by_index, TimePoint deadline,
                                 const Interrupted& interrupted) {
  WC_ASSIGN_OR_RETURN(const Connection connection, peers_.ConnectExactly(peer, deadline, interrupted));
  return OpenChannel(connection, by_index);
}

Result<uint64_t> Engine::Shared(const EngineMetadata& peer, TimePoint deadline,
                                const Interrupted& interrupted) {
  WC_ASSIGN_OR_RETURN(const Connection connection, peers_.ConnectExactly(peer, deadline, interrupted));
  const std::lock_guard lock(s_.mutex);
  const PeerPtr known = peers_.PeerOf(connection);
  WC_RETURN_IF_ERROR(peers_.LoseIfEnded(known));
  const ChannelPtr channel = peers_.SharedChannel(known);
  channel->gpu = peer.gpu;
  return channel->id;
}

Result<Accepted> Engine::Accept(std::optional<TimePoint> deadline, const Interrupted& interrupted) {
  std::unique_lock lock(s_.mutex);
  while (s_.to_accept.empty()) {
    const TimePoint now = Clock::now();
    if (deadline && now >= *deadline)
      return Status(Code::kTimedOut,
                    "no peer has connected to this endpoint within the timeout of this call; check that one "
                    "runs and connects to this one, then accept again");
    s_.changed.wait_until(lock, deadline ? std::min(*deadline, now + kGlance) : now + kGlance);
    if (!s_.to_accept.empty()) break;
    lock.unlock();  // It may run other code, which may call us.
    if (interrupted && interrupted()) return InterruptedCall("accept");
    lock.lock();
  }
  const ChannelPtr channel = s_.to_accept.front();
  s_.to_accept.pop_front();
  WC_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(channel->peer->connection.address()));
  return Accepted{.channel = channel->id, .host = address.host, .gpu = channel->gpu};
}

Status Engine::CloseChannel(uint64_t id) {
  const std::lock_guard lock(s_.mutex);
  const auto found = s_.channels.find(id);
  if (found == s_.channels.end())
    return Error(Code::kInvalidArgument, "there is no connection ", id,
                 ", or it was removed; give the number of an open one");
  const ChannelPtr channel = found->second;
  if (channel->status.ok()) {
    peers_.TakeOff(*channel);
    s_.Send(*channel->peer, Close{.channel = channel->wire});
    peers_.EndChannel(*channel, Error(Code::kCancelled, "this process removed connection ", id,
                                      "; connect again to go on"));
  }
  s_.channels.erase(id);
  return Status::Ok();
}

bool Engine::HasChannel(uint64_t id) const {
  const std::lock_guard lock(s_.mutex);
  return s_.channels.contains(id);
}

std::optional<uint64_t> Engine::ChannelTo(uint32_t rank) const {
  const std::lock_guard lock(s_.mutex);
  for (const auto& [incarnation, peer] : s_.peers) {
    if (peer->connection.peer().rank != rank || peer->channels.empty()) continue;
    return peer->channels.rbegin()->second->id;  // The shared one has the greatest number.
  }
  return std::nullopt;
}

// --- Memory ------------------------------------------------------------------------------------------

Result<uint64_t> Engine::Register(std::span<std::byte> bytes) {
  WC_ASSIGN_OR_RETURN(const auto memory, memories_.New(bytes, /*temporary=*/false));
  return memory->id;
}

Status Engine::Deregister(uint64_t id) {
  MemoryPtr memory;
  {
    const std::lock_guard lock(s_.mutex);
    const auto found = s_.memories.find(id);
    if (found == s_.memories.end())
      return Error(Code::kInvalidArgument, "no memory is registered as ", id,
                   " any more, or at all; give the id of one that is");
    memory = found->second;
    memories_.Drop(*memory);
    const Status reason = Error(Code::kCancelled, "memory ", id, " of the p2p endpoint of rank ",
                                options_.rank, " was deregistered; register it again to go on");
    const auto all = s_.operations;
    for (const auto& [number, operation] : all) {
      const auto& parts = operation->parts;
      if (std::any_of(parts.begin(), parts.end(),
                      [&](const OwnSlice& part) { return part.memory == memory; }))
        operations_.Cancel(operation, reason);
    }
  }
  const Status closed = memory->region->Close(Clock::now() + s_.lease);
  if (closed.ok()) return closed;
  const std::lock_guard lock(s_.mutex);
  s_.memories[id] = memory;  // To be tried again.
  return closed;
}

Result<OwnSlice> Engine::ResolveToAdvertise(const LocalSlice& bytes) {
  MemoryPtr known;
  if (bytes.memory == 0) {
    const std::lock_guard lock(s_.mutex);
    for (const auto& [id, memory] : s_.memories) {
      if (memory->advertised && memory->address == bytes.address && memory->length == bytes.length)
        known = memory;
    }
  }
  if (known == nullptr) return memories_.Resolve(bytes, /*up_to_end=*/false);
  const auto identity = memories_.IdentityOf(*known);
  if (identity.ok() && *identity == known->identity)
    return OwnSlice{.memory = known, .offset = 0, .length = bytes.length};
  // It was freed, and this is other memory at the same address.
  (void)Deregister(known->id);
  return memories_.Resolve(bytes, /*up_to_end=*/false);
}

Result<Advert> Engine::Advertise(const LocalSlice& bytes) {
  WC_ASSIGN_OR_RETURN(const OwnSlice part, ResolveToAdvertise(bytes));
  uint64_t identity = 0;
  if (bytes.memory == 0) {
    WC_ASSIGN_OR_RETURN(identity, memories_.IdentityOf(*part.memory));
  }
  const std::lock_guard lock(s_.mutex);
  if (part.memory->temporary) {  // A peer that has the advert may come at any time.
    part.memory->temporary = false;
    part.memory->advertised = true;
    part.memory->identity = identity;
  }
  return Advert{.owner = s_.endpoint->self().incarnation,
                .memory = part.memory->id,
                .offset = part.offset,
                .length = part.length,
                .address = reinterpret_cast<uintptr_t>(bytes.address)};
}

// --- Operations --------------------------------------------------------------------------------------

Result<uint64_t> Engine::Send(uint64_t channel, std::span<const LocalSlice> from) {
  WC_ASSIGN_OR_RETURN(const OperationPtr send, operations_.Make(OperationKind::kSend, from));
  const std::lock_guard lock(s_.mutex);
  WC_RETURN_IF_ERROR(operations_.Attach(*send, channel));
  send->number = ++send->channel->sends;
  send->channel->sending[send->number] = send;
  const uint64_t number = operations_.Number(send);
  operations_.MeetOffer(send);
  return number;
}

Result<uint64_t> Engine::Receive(uint64_t channel, std::span<const LocalSlice> to) {
  if (to.size() > kMaxPieces)
    return Error(Code::kInvalidArgument, "a recv into ", to.size(), " pieces, more than ", kMaxPieces,
                 "; split it");
  WC_ASSIGN_OR_RETURN(const OperationPtr receive, operations_.Make(OperationKind::kReceive, to));
  const std::lock_guard lock(s_.mutex);
  WC_RETURN_IF_ERROR(operations_.Attach(*receive, channel));
  receive->number = ++receive->channel->receives;
  receive->channel->receiving[receive->number] = receive;
  const uint64_t number = operations_.Number(receive);
  auto& abandoned = receive->channel->abandoned;
  if (const auto found = abandoned.find(receive->number); found != abandoned.end()) {
    const Status reason = found->second;
    abandoned.erase(found);
    operations_.Finish(*receive, reason);
    return number;
  }
  receive->channel->peer->without_grant.push_back(receive);
  operations_.OfferWhatCanBe(receive->channel->peer);
  return number;
}

Result<uint64_t> Engine::Write(uint64_t channel, std::span<const LocalSlice> local,
                               std::span<const Advert> adverts) {
  return OneSided(OperationKind::kWrite, channel, local, adverts);
}

Result<uint64_t> Engine::Read(uint64_t channel, std::span<const LocalSlice> local,
                              std::span<const Advert> adverts) {
  return OneSided(OperationKind::kRead, channel, local, adverts);
}

Result<uint64_t> Engine::OneSided(OperationKind kind, uint64_t channel, std::span<const LocalSlice> local,
                                  std::span<const Advert> adverts) {
  if (local.size() != adverts.size())
    return Error(Code::kInvalidArgument, local.size(), " pieces of local memory and ", adverts.size(),
                 " of the peer's were given; give as many of each");
  WC_ASSIGN_OR_RETURN(const OperationPtr operation, operations_.Make(kind, local));
  const std::lock_guard lock(s_.mutex);
  WC_RETURN_IF_ERROR(operations_.Attach(*operation, channel));
  for (size_t i = 0; i < adverts.size(); ++i) {
    if (Status wrong = CheckAdvert(adverts[i], local[i].length, *operation->channel->peer); !wrong.ok()) {
      operations_.Retire(*operation);
      return local.size() == 1 ? wrong : Error(wrong.code(), "piece ", i, ": ", wrong.message());
    }
    operation->remote.push_back(
        {.memory = adverts[i].memory, .offset = adverts[i].offset, .length = local[i].length});
  }
  operation->number = ++operation->channel->one_sideds;
  operation->channel->one_sided[operation->number] = operation;
  const uint64_t number = operations_.Number(operation);
  operations_.Launch(operation);
  return number;
}

/// The caller does nothing but poll, has polled this operation before, and none has ended since. Such a
/// caller had better wait: it keeps the core from the threads that do the work.
bool Engine::PollsInALoop(Operation& operation) const {
  return std::exchange(operation.polled, poll_round_) == poll_round_ && Clock::now() - last_poll_ < kAtOnce;
}

std::optional<Status> Engine::Poll(uint64_t number) {
  std::unique_lock lock(s_.mutex);
  const auto found = s_.operations.find(number);
  if (found == s_.operations.end()) return NoSuchOperation(number);
  const OperationPtr operation = found->second;
  if (!operations_.IsOver(*operation) && PollsInALoop(*operation)) {
    MoveOn(*operation, kMoment, lock);
    ++poll_round_;
  }
  last_poll_ = Clock::now();
  if (!operations_.IsOver(*operation)) return std::nullopt;
  if (s_.operations.erase(number) == 0) return NoSuchOperation(number);  // Another thread has been told.
  ++poll_round_;
  lock.unlock();
  operation->LetGo();
  return operation->outcome;
}

Status Engine::Wait(uint64_t number, const Interrupted& interrupted) {
  std::unique_lock lock(s_.mutex);
  const auto found = s_.operations.find(number);
  if (found == s_.operations.end()) return NoSuchOperation(number);
  const OperationPtr operation = found->second;
  bool cancelled = false;
  while (!operations_.IsOver(*operation)) {
    MoveOn(*operation, kGlance, lock);
    if (operations_.IsOver(*operation)) break;
    lock.unlock();  // It may run other code, which may call us.
    const bool stop = !cancelled && interrupted && interrupted();
    lock.lock();
    if (stop) {
      cancelled = true;
      operations_.Cancel(operation, Error(Code::kCancelled, "the wait for operation ", number,
                                          " was interrupted by a signal or by the caller, which "
                                          "cancels it; begin it again"));
    }
  }
  s_.operations.erase(number);
  lock.unlock();
  operation->LetGo();
  return operation->outcome;
}

/// For about so long, or until something changes.
void Engine::MoveOn(Operation& operation, Duration limit, std::unique_lock<std::mutex>& lock) {
  const auto transfer = operation.transfer;
  if (!transfer || operation.asked) {
    s_.changed.wait_for(lock, limit);
    return;
  }
  lock.unlock();
  Drive(operation, *transfer, Clock::now() + limit);
  lock.lock();
}

/// On the caller's own thread, which is quicker than to be told of the end.
void Engine::Drive(Operation& operation, Transfer transfer, TimePoint until) {
  (void)transfer.Wait(until);
  if (!transfer.ended()) return;
  operations_.OnTransferEnd(operation, transfer.Wait());
  (void)transfer.WaitFenced(until);
}

}  // namespace weightcast::p2p
