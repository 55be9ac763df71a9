#include <algorithm>
#include <set>
#include <utility>

#include "base/strings.h"
#include "p2p/engine.h"

// Operations, from the call to their end.
namespace weightcast::p2p {
namespace {

/// A transfer ends by itself when the peer is dead; a slow network is no reason.

constexpr uint32_t kGrantsOfChannel = 16;

/// A caller who polls again within this does nothing but poll.
constexpr Duration kAtOnce = std::chrono::microseconds(50);
/// Such a poll waits for as long as this. Setting a shorter timer costs a virtual machine more than it saves.
constexpr Duration kMoment = std::chrono::milliseconds(1);

std::string StillThere(const Peer& peer) {
  return StrCat(
      NameOf(peer),
      " does not answer and may still use the memory; keep it allocated until that process has ended");
}

Status NoSuchOperation(uint64_t number) {
  return {Code::kInvalidArgument,
          StrCat("there is no operation ", number,
                 ", or its end was reported already; give a number that a call returned")};
}

bool Sends(const Operation& operation) { return operation.kind == OperationKind::kSend; }
bool Receives(const Operation& operation) { return operation.kind == OperationKind::kReceive; }

uint64_t BytesOf(const std::vector<Slice>& slices) {
  uint64_t bytes = 0;
  for (const Slice& slice : slices) bytes += slice.length;
  return bytes;
}

}  // namespace

// --- Calls -------------------------------------------------------------------------------------------

Result<OperationPtr> Engine::Make(OperationKind kind, std::span<const Local> local) {
  auto operation = std::make_shared<Operation>();
  operation->kind = kind;
  for (size_t i = 0; i < local.size(); ++i) {
    if (local[i].length == 0) {
      operation->parts.emplace_back();
      continue;
    }
    auto part = Resolve(local[i], /*up_to_end=*/kind == OperationKind::kReceive);
    if (!part.ok()) {
      const std::lock_guard lock(mutex_);
      Retire(*operation);
      return Status(part.status().code(), local.size() == 1
                                              ? part.status().message()
                                              : StrCat("piece ", i, ": ", part.status().message()));
    }
    operation->bytes += part->length;
    operation->parts.push_back(*std::move(part));
  }
  if (Status recorded = AwaitStreams(operation); !recorded.ok()) {
    const std::lock_guard lock(mutex_);
    Retire(*operation);
    return recorded;
  }
  return operation;
}

Status Engine::AwaitStreams(const OperationPtr& operation) {
  std::set<int> devices;
  for (const Part& part : operation->parts)
    if (part.memory != nullptr && part.memory->device >= 0) devices.insert(part.memory->device);
  if (devices.empty() || !options_.stream_of) return Status::Ok();
  {
    const std::lock_guard lock(mutex_);
    operation->awaited = devices.size();
    operation->waits_as = ++last_awaiting_;
    awaiting_[operation->waits_as] = operation;
  }
  for (const int device : devices) {
    WC_ASSIGN_OR_RETURN(const StreamRef stream, options_.stream_of(device));
    const auto tell = [self = self_, waits_as = operation->waits_as](const Status& outcome) {
      const std::lock_guard lock(self->mutex);
      if (self->engine != nullptr) self->engine->OnStreamOver(waits_as, outcome);
    };
    WC_ASSIGN_OR_RETURN(auto event, user_memory_.Record(stream, tell));
    operation->after.push_back(std::move(event));
  }
  return Status::Ok();
}

/// On wc-device. The caller may not have come as far as the channel; it then sees for itself. Whoever lets go
/// of an operation takes it out of `awaiting_` first: its last holder must not be this thread.
void Engine::OnStreamOver(uint64_t waits_as, const Status& outcome) {
  const std::lock_guard lock(mutex_);
  const auto found = awaiting_.find(waits_as);
  if (found == awaiting_.end()) return;
  const OperationPtr operation = found->second;
  if (!outcome.ok()) {
    operation->reason = {outcome.code(), StrCat("the stream of this operation's memory is lost: ",
                                                outcome.message(), "; look what runs on that stream")};
    if (operation->channel != nullptr) Cancel(operation, operation->reason);
    return;
  }
  if (--operation->awaited > 0) return;
  awaiting_.erase(found);
  if (operation->channel == nullptr) return;
  if (Receives(*operation)) return OfferWhatCanBe(operation->channel->peer);
  if (!Sends(*operation) || operation->grant.id != 0) Launch(operation);
}

/// To a channel that lives, if its memory has not been deregistered meanwhile.
Status Engine::Attach(Operation& operation, uint64_t channel) {
  auto usable = Usable(channel);
  Status wrong = usable.ok() ? StillRegistered(operation) : usable.status();
  if (wrong.ok()) wrong = operation.reason;  // Its stream is lost already.
  if (wrong.ok()) {
    operation.channel = *std::move(usable);
  } else {
    Retire(operation);
  }
  return wrong;
}

uint64_t Engine::Number(OperationPtr operation) {
  operations_[++last_operation_] = std::move(operation);
  return last_operation_;
}

Result<uint64_t> Engine::Send(uint64_t channel, std::span<const Local> from) {
  WC_ASSIGN_OR_RETURN(const OperationPtr send, Make(OperationKind::kSend, from));
  const std::lock_guard lock(mutex_);
  WC_RETURN_IF_ERROR(Attach(*send, channel));
  send->number = ++send->channel->sends;
  send->channel->sending[send->number] = send;
  const uint64_t number = Number(send);
  MeetOffer(send);
  return number;
}

Result<uint64_t> Engine::Receive(uint64_t channel, std::span<const Local> to) {
  if (to.size() > kMaxPieces) {
    return Status(Code::kInvalidArgument,
                  StrCat("a recv into ", to.size(), " pieces, more than ", kMaxPieces, "; split it"));
  }
  WC_ASSIGN_OR_RETURN(const OperationPtr receive, Make(OperationKind::kReceive, to));
  const std::lock_guard lock(mutex_);
  WC_RETURN_IF_ERROR(Attach(*receive, channel));
  receive->number = ++receive->channel->receives;
  receive->channel->receiving[receive->number] = receive;
  const uint64_t number = Number(receive);
  auto& abandoned = receive->channel->abandoned;
  if (const auto found = abandoned.find(receive->number); found != abandoned.end()) {
    const Status reason = found->second;
    abandoned.erase(found);
    Finish(*receive, reason);
    return number;
  }
  receive->channel->peer->without_grant.push_back(receive);
  OfferWhatCanBe(receive->channel->peer);
  return number;
}

Result<uint64_t> Engine::Write(uint64_t channel, std::span<const Local> local,
                               std::span<const Advert> adverts) {
  return OneSided(OperationKind::kWrite, channel, local, adverts);
}

Result<uint64_t> Engine::Read(uint64_t channel, std::span<const Local> local,
                              std::span<const Advert> adverts) {
  return OneSided(OperationKind::kRead, channel, local, adverts);
}

Result<uint64_t> Engine::OneSided(OperationKind kind, uint64_t channel, std::span<const Local> local,
                                  std::span<const Advert> adverts) {
  if (local.size() != adverts.size()) {
    return Status(Code::kInvalidArgument, StrCat(local.size(), " pieces of local memory and ", adverts.size(),
                                                 " of the peer's were given; give as many of each"));
  }
  WC_ASSIGN_OR_RETURN(const OperationPtr operation, Make(kind, local));
  const std::lock_guard lock(mutex_);
  WC_RETURN_IF_ERROR(Attach(*operation, channel));
  for (size_t i = 0; i < adverts.size(); ++i) {
    if (Status wrong = CheckAdvert(adverts[i], local[i].length, *operation->channel->peer); !wrong.ok()) {
      Retire(*operation);
      return wrong;
    }
    operation->remote.push_back(
        {.memory = adverts[i].memory, .offset = adverts[i].offset, .length = local[i].length});
  }
  operation->number = ++operation->channel->one_sideds;
  operation->channel->one_sided[operation->number] = operation;
  const uint64_t number = Number(operation);
  Launch(operation);
  return number;
}

Status Engine::CheckAdvert(const Advert& advert, uint64_t length, const Peer& peer) {
  if (advert.owner != peer.connection.peer().incarnation) {
    return {Code::kInvalidArgument,
            StrCat("the advertised memory is not of the peer of this connection, ", NameOf(peer),
                   "; pass on what that process has advertised since it started")};
  }
  if (length > advert.length)
    return {Code::kOutOfBounds, StrCat("the operation has ", length, " bytes, and ", NameOf(peer),
                                       " advertised ", advert.length, "; let it advertise as many")};
  return Status::Ok();
}

// --- Sends meet receives -----------------------------------------------------------------------------

/// Cuts a recv's slices to the send's pieces, if there are as many and each has room.
void Engine::FitToPieces(const Operation& send, std::vector<Slice>& slices) {
  const auto fits = [](const Part& part, const Slice& slice) { return part.length <= slice.length; };
  if (!std::equal(send.parts.begin(), send.parts.end(), slices.begin(), slices.end(), fits)) return;
  for (size_t i = 0; i < slices.size(); ++i) slices[i].length = send.parts[i].length;
}

/// If it is there as a whole.
void Engine::MeetOffer(const OperationPtr& send) {
  auto& offers = send->channel->offers;
  const auto found = offers.find(send->number);
  if (found == offers.end() || found->second.offer.more) return;
  Channel::Offered offered = std::move(found->second);
  offers.erase(found);
  send->channel->peer->offered -= offered.offer.slices.size();
  if (!offered.reason.ok()) return Finish(*send, offered.reason);
  const uint64_t room = BytesOf(offered.offer.slices);
  if (send->bytes > room) {
    return FailSend(
        *send, {Code::kInvalidArgument, StrCat("a send of ", send->bytes, " bytes meets a recv of ", room,
                                               " bytes; give the recv room for all of them")});
  }
  FitToPieces(*send, offered.offer.slices);
  send->grant = offered.offer.grant;
  send->remote = std::move(offered.offer.slices);
  Launch(send);
}

void Engine::FailSend(Operation& send, const Status& reason) {
  if (send.ended) return;
  Tell(*send.channel->peer, Abandon{.channel = send.channel->wire, .number = send.number, .reason = reason});
  Finish(send, reason);
}

/// False: it has asked for what is missing.
Result<bool> Engine::AllDescribed(const Operation& operation, Peer& peer) {
  bool described = true;
  for (const Slice& slice : operation.remote) {
    if (slice.length == 0) continue;
    const auto entry = peer.imports.try_emplace(slice.memory).first;
    Peer::Import& import = entry->second;
    if (!import.reason.ok()) {
      const Status reason = import.reason;
      peer.imports.erase(entry);  // Who comes next asks again: something may have run out for a moment.
      return reason;
    }
    if (import.region) continue;
    described = false;
    if (!std::exchange(import.asked, true)) Tell(peer, Want{.memory = slice.memory});
  }
  return described;
}

void Engine::Launch(const OperationPtr& operation) {
  if (operation->ended || operation->awaited > 0) return;
  Peer& peer = *operation->channel->peer;
  const auto fail = [&](const Status& reason) {
    return Sends(*operation) ? FailSend(*operation, reason) : Finish(*operation, reason);
  };
  const auto described = AllDescribed(*operation, peer);
  if (!described.ok()) return fail(described.status());
  if (!*described) {
    peer.describing.push_back(operation);
    return;
  }
  TransferOptions options;
  options.deadline = kNever;
  if (Sends(*operation)) {
    options.grant = operation->grant;
    options.signal = 0;
  }
  options.on_end = [this, operation](const Status& outcome) { OnTransferEnd(*operation, outcome); };
  const auto pieces = PiecesOf(*operation, peer);
  if (!pieces.ok()) return fail(pieces.status());
  auto transfer = operation->kind == OperationKind::kRead
                      ? peer.connection.Read(*pieces, std::move(options))
                      : peer.connection.Write(*pieces, std::move(options));
  if (!transfer.ok()) return fail(transfer.status());
  operation->transfer = *std::move(transfer);
  changed_.notify_all();  // Whoever waits can drive it.
}

/// Both sides are rows of bytes: a piece ends where either side's does.
Result<std::vector<Piece>> Engine::PiecesOf(const Operation& operation, const Peer& peer) {
  std::vector<Piece> pieces;
  pieces.reserve(operation.parts.size());
  auto slice = operation.remote.begin();
  uint64_t slice_done = 0;
  for (const Part& part : operation.parts) {
    for (uint64_t done = 0; done < part.length;) {
      for (; slice_done == slice->length; slice_done = 0) ++slice;
      const uint64_t length = std::min(part.length - done, slice->length - slice_done);
      const RemoteRegion& region = peer.imports.at(slice->memory).region.value();
      WC_ASSIGN_OR_RETURN(const auto local, part.memory->region->Slice(part.offset + done, length));
      WC_ASSIGN_OR_RETURN(const auto remote, region.Slice(slice->offset + slice_done, length));
      pieces.push_back({local, remote});
      done += length;
      slice_done += length;
    }
  }
  return pieces;
}

void Engine::OnTransferEnd(Operation& operation, Status outcome) {
  const std::lock_guard lock(mutex_);
  if (operation.ended) return;
  if (outcome.code() == Code::kCancelled && !operation.reason.ok()) outcome = operation.reason;
  const Channel& channel = *operation.channel;
  if (!Sends(operation) || !channel.status.ok()) return Finish(operation, outcome);
  if (outcome.ok()) {
    Tell(*channel.peer, Finished{.channel = channel.wire, .number = operation.number});
    Finish(operation, outcome);
  } else if (outcome.code() == Code::kFenced && !operation.reason.ok()) {
    Finish(operation, operation.reason);  // The receiver has said why.
  } else if (outcome.code() == Code::kFenced) {
    // The receiver took its leave back: it has every byte, or has said why. Either comes as its answer.
    if (!std::exchange(operation.asked, true))
      Tell(*channel.peer, Abandon{.channel = channel.wire, .number = operation.number, .reason = outcome});
  } else {
    FailSend(operation, outcome);
  }
}

// --- Receives ----------------------------------------------------------------------------------------

/// In order, but no channel takes all grants of the connection.
void Engine::OfferWhatCanBe(const PeerPtr& peer) {
  auto& waiting = peer->without_grant;
  for (auto next = waiting.begin(); next != waiting.end();) {
    const OperationPtr receive = *next;
    const bool waits = receive->awaited > 0 || receive->channel->granted >= kGrantsOfChannel;
    if (!receive->ended && waits) {
      ++next;
      continue;
    }
    if (!receive->ended && !OfferOne(receive)) return;
    next = waiting.erase(next);
  }
}

/// False: the connection has no grant left.
bool Engine::OfferOne(const OperationPtr& receive) {
  GrantOptions options;
  options.transfers = 1;
  options.on_transfer = [this, receive](uint32_t, const GrantProgress&) {
    const std::lock_guard lock(mutex_);
    EndReceive(receive, Status::Ok());
  };
  options.ranges.emplace();
  for (const Part& part : receive->parts) {
    if (part.length == 0 || part.memory->region == nullptr) continue;  // Deregistered: refused by its peer.
    auto slice = part.memory->region->Slice(part.offset, part.length);
    if (slice.ok()) options.ranges->push_back({.first = *slice});
  }
  auto grant = receive->channel->peer->connection.OpenGrant(std::move(options));
  if (grant.status().code() == Code::kExhausted) return false;
  if (grant.ok()) {
    ++receive->channel->granted;
    receive->grant = *grant;
    OfferMemory(*receive);
  } else {
    TellWithdrawn(*receive, grant.status());
    Finish(*receive, grant.status());
  }
  return true;
}

void Engine::OfferMemory(const Operation& receive) {
  Peer& peer = *receive.channel->peer;
  Offer offer{.channel = receive.channel->wire,
              .number = receive.number,
              .grant = receive.grant,
              .more = false,
              .slices = {}};
  for (const Part& part : receive.parts) {
    if (part.length == 0) continue;
    if (offer.slices.size() == Offer::kMaxSlices) {
      offer.more = true;
      Tell(peer, offer);
      offer.more = false;
      offer.slices.clear();
    }
    TellOf(peer, *part.memory);
    offer.slices.push_back({.memory = part.memory->id, .offset = part.offset, .length = part.length});
  }
  Tell(peer, offer);
}

/// Well or badly: first takes back what the peer may write to, also once it has written all: a chunk that was
/// sent again because a lane failed may still be on its way.
void Engine::EndReceive(const OperationPtr& receive, const Status& outcome) {
  if (receive->ended || receive->ending) return;
  if (receive->grant.id == 0) return Finish(*receive, outcome);
  receive->ending = true;
  receive->limit = Clock::now() + 2 * options_.settings.lease;
  const PeerPtr peer = receive->channel->peer;
  peer->connection.RevokeGrant(receive->grant, [this, peer, receive, outcome] {
    const std::lock_guard lock(mutex_);
    --receive->channel->granted;
    Finish(*receive, outcome);
    OfferWhatCanBe(peer);
  });
}

// --- Ends --------------------------------------------------------------------------------------------

void Engine::Finish(Operation& operation, const Status& outcome) {
  if (operation.ended) return;
  operation.ended = true;
  operation.outcome = outcome;
  if (operation.transfer && !operation.transfer->fenced())
    operation.limit = Clock::now() + options_.settings.lease;
  Channel& channel = *operation.channel;
  (Sends(operation)      ? channel.sending
   : Receives(operation) ? channel.receiving
                         : channel.one_sided)
      .erase(operation.number);
  if (Receives(operation) && operation.asked) TellEnd(operation);
  Retire(operation);
  changed_.notify_all();
}

void Engine::TellWithdrawn(const Operation& receive, const Status& reason) {
  const Channel& channel = *receive.channel;
  if (!channel.status.ok()) return;
  Tell(*channel.peer, Withdraw{.channel = channel.wire, .number = receive.number, .reason = reason});
}

/// To a sender who has asked.
void Engine::TellEnd(const Operation& receive) {
  const Channel& channel = *receive.channel;
  if (!receive.outcome.ok()) return TellWithdrawn(receive, receive.outcome);
  if (channel.status.ok()) Tell(*channel.peer, Received{.channel = channel.wire, .number = receive.number});
}

void Engine::Cancel(const OperationPtr& operation, const Status& reason) {
  if (operation->ended) return;
  if (operation->reason.ok()) operation->reason = reason;
  if (Sends(*operation) && operation->asked) return Finish(*operation, reason);
  if (operation->transfer) return operation->transfer->Cancel();
  if (Sends(*operation)) return FailSend(*operation, reason);
  if (!Receives(*operation)) return Finish(*operation, reason);
  if (!operation->ending) TellWithdrawn(*operation, reason);
  EndReceive(operation, reason);
}

/// Nobody touches its memory any more; or somebody stopped may, which its outcome then says.
bool Engine::IsOver(Operation& operation) {
  const bool late = Clock::now() >= operation.limit;
  if (!operation.ended && operation.ending && late)
    Finish(operation, {Code::kTimedOut, StillThere(*operation.channel->peer)});
  if (!operation.ended) return false;
  if (!operation.transfer || operation.transfer->fenced()) return true;
  // A peer that lives gives back what it has; one that is lost and stopped may not.
  if (!late || operation.channel->peer->lost.ok()) return false;
  operation.outcome = {Code::kTimedOut, StillThere(*operation.channel->peer)};
  return true;
}

/// The caller does nothing but poll, has polled this operation before, and none has ended since. Such a
/// caller had better wait: it keeps the core from the threads that do the work.
bool Engine::PollsInALoop(Operation& operation) const {
  return std::exchange(operation.polled, poll_round_) == poll_round_ && Clock::now() - last_poll_ < kAtOnce;
}

std::optional<Status> Engine::Poll(uint64_t number) {
  std::unique_lock lock(mutex_);
  const auto found = operations_.find(number);
  if (found == operations_.end()) return NoSuchOperation(number);
  const OperationPtr operation = found->second;
  if (!IsOver(*operation) && PollsInALoop(*operation)) {
    MoveOn(*operation, kMoment, lock);
    ++poll_round_;
  }
  last_poll_ = Clock::now();
  if (!IsOver(*operation)) return std::nullopt;
  if (operations_.erase(number) == 0) return NoSuchOperation(number);  // Another thread has been told.
  ++poll_round_;
  lock.unlock();
  operation->LetGo();
  return operation->outcome;
}

Status Engine::Wait(uint64_t number, const Interrupted& interrupted) {
  std::unique_lock lock(mutex_);
  const auto found = operations_.find(number);
  if (found == operations_.end()) return NoSuchOperation(number);
  const OperationPtr operation = found->second;
  bool cancelled = false;
  while (!IsOver(*operation)) {
    MoveOn(*operation, kGlance, lock);
    if (IsOver(*operation)) break;
    lock.unlock();  // It may run other code, which may call us.
    const bool stop = !cancelled && interrupted && interrupted();
    lock.lock();
    if (stop) {
      cancelled = true;
      Cancel(operation, {Code::kCancelled, StrCat("the wait for operation ", number,
                                                  " was interrupted by a signal or by the caller, which "
                                                  "cancels it; begin it again")});
    }
  }
  operations_.erase(number);
  lock.unlock();
  operation->LetGo();
  return operation->outcome;
}

/// For about so long, or until something changes.
void Engine::MoveOn(Operation& operation, Duration limit, std::unique_lock<std::mutex>& lock) {
  const auto transfer = operation.transfer;
  if (!transfer || operation.asked) {
    changed_.wait_for(lock, limit);
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
  OnTransferEnd(operation, transfer.Wait());
  (void)transfer.WaitFenced(until);
}

}  // namespace weightcast::p2p
