#include "p2p/operations.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/strings.h"

namespace weightcast::p2p {
namespace {

constexpr uint32_t kGrantsOfChannel = 16;

std::string StillThere(const Peer& peer) {
  return StrCat(
      NameOf(peer),
      " does not answer and may still use the memory; keep it allocated until that process has ended");
}

bool Sends(const Operation& operation) { return operation.kind == OperationKind::kSend; }
bool Receives(const Operation& operation) { return operation.kind == OperationKind::kReceive; }

uint64_t BytesOf(const std::vector<Slice>& slices) {
  uint64_t bytes = 0;
  for (const Slice& slice : slices) bytes += slice.length;
  return bytes;
}

/// Cuts a recv's slices to the send's pieces, if there are as many and each has room.
void FitToPieces(const Operation& send, std::vector<Slice>& slices) {
  const auto fits = [](const OwnSlice& part, const Slice& slice) { return part.length <= slice.length; };
  if (!std::equal(send.parts.begin(), send.parts.end(), slices.begin(), slices.end(), fits)) return;
  for (size_t i = 0; i < slices.size(); ++i) slices[i].length = send.parts[i].length;
}

/// Both sides are rows of bytes: a piece ends where either side's does.
Result<std::vector<Piece>> PiecesOf(const Operation& operation, const Peer& peer) {
  std::vector<Piece> pieces;
  pieces.reserve(operation.parts.size());
  auto slice = operation.remote.begin();
  uint64_t slice_done = 0;
  for (const OwnSlice& part : operation.parts) {
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

}  // namespace

// --- Calls -------------------------------------------------------------------------------------------

Result<OperationPtr> Operations::Make(OperationKind kind, std::span<const LocalSlice> local) {
  auto operation = std::make_shared<Operation>();
  operation->kind = kind;
  for (size_t i = 0; i < local.size(); ++i) {
    if (local[i].length == 0) {
      operation->parts.emplace_back();
      continue;
    }
    auto part = memories_.Resolve(local[i], /*up_to_end=*/kind == OperationKind::kReceive);
    if (!part.ok()) {
      const std::lock_guard lock(s_.mutex);
      Retire(*operation);
      return Status(part.status().code(), local.size() == 1
                                              ? part.status().message()
                                              : StrCat("piece ", i, ": ", part.status().message()));
    }
    operation->bytes += part->length;
    operation->parts.push_back(*std::move(part));
  }
  if (Status recorded = AwaitStreams(operation); !recorded.ok()) {
    const std::lock_guard lock(s_.mutex);
    Retire(*operation);
    return recorded;
  }
  return operation;
}

Status Operations::AwaitStreams(const OperationPtr& operation) {
  std::set<int> devices;
  for (const OwnSlice& part : operation->parts)
    if (part.memory != nullptr && part.memory->device >= 0) devices.insert(part.memory->device);
  if (devices.empty() || !s_.stream_of) return Status::Ok();
  {
    const std::lock_guard lock(s_.mutex);
    operation->awaited = devices.size();
    operation->waits_as = ++last_awaiting_;
    s_.awaiting[operation->waits_as] = operation;
  }
  for (const int device : devices) {
    WC_ASSIGN_OR_RETURN(const StreamRef stream, s_.stream_of(device));
    const auto tell = [self = self_, waits_as = operation->waits_as](const Status& outcome) {
      const std::lock_guard lock(self->mutex);
      if (self->operations != nullptr) self->operations->OnStreamOver(waits_as, outcome);
    };
    WC_ASSIGN_OR_RETURN(auto event, s_.user_memory.Record(stream, tell));
    operation->after.push_back(std::move(event));
  }
  return Status::Ok();
}

void Operations::ForgetStreams() {
  const std::lock_guard lock(self_->mutex);
  self_->operations = nullptr;
}

/// On wc-device. The caller may not have come as far as the channel; it then sees for itself. What lets go of
/// an operation takes it out of `s_.awaiting` first: its last holder must not be this thread.
void Operations::OnStreamOver(uint64_t waits_as, const Status& outcome) {
  const std::lock_guard lock(s_.mutex);
  const auto found = s_.awaiting.find(waits_as);
  if (found == s_.awaiting.end()) return;
  const OperationPtr operation = found->second;
  if (!outcome.ok()) {
    operation->reason =
        Error(outcome.code(), "the stream of this operation's memory is lost: ", outcome.message(),
              "; look what runs on that stream");
    if (operation->channel != nullptr) Cancel(operation, operation->reason);
    return;
  }
  if (--operation->awaited > 0) return;
  s_.awaiting.erase(found);
  if (operation->channel == nullptr) return;
  if (Receives(*operation)) return OfferWhatCanBe(operation->channel->peer);
  if (!Sends(*operation) || operation->grant.id != 0) Launch(operation);
}

/// To a channel that is open, if its memory has not been deregistered meanwhile.
Status Operations::Attach(Operation& operation, uint64_t channel) {
  auto usable = s_.Usable(channel);
  Status wrong = usable.ok() ? memories_.StillRegistered(operation) : usable.status();
  if (wrong.ok()) wrong = operation.reason;  // Its stream is lost already.
  if (wrong.ok()) {
    operation.channel = *std::move(usable);
  } else {
    Retire(operation);
  }
  return wrong;
}

uint64_t Operations::Number(OperationPtr operation) {
  s_.operations[++last_] = std::move(operation);
  return last_;
}

// --- Sends meet receives -----------------------------------------------------------------------------

/// If it is there as a whole.
void Operations::MeetOffer(const OperationPtr& send) {
  auto& offers = send->channel->offers;
  const auto found = offers.find(send->number);
  if (found == offers.end() || found->second.offer.more) return;
  Channel::Offered offered = std::move(found->second);
  offers.erase(found);
  send->channel->peer->offered -= offered.offer.slices.size();
  if (!offered.reason.ok()) return Finish(*send, offered.reason);
  const uint64_t room = BytesOf(offered.offer.slices);
  if (send->bytes > room) {
    return FailSend(*send, Error(Code::kInvalidArgument, "a send of ", send->bytes, " bytes meets a recv of ",
                                 room, " bytes at rank ", send->channel->peer->connection.peer().rank,
                                 "; give that recv room for all of them"));
  }
  FitToPieces(*send, offered.offer.slices);
  send->grant = offered.offer.grant;
  send->remote = std::move(offered.offer.slices);
  Launch(send);
}

void Operations::FailSend(Operation& send, const Status& reason) {
  if (send.ended) return;
  s_.Send(*send.channel->peer,
          Abandon{.channel = send.channel->wire, .number = send.number, .reason = reason});
  Finish(send, reason);
}

/// False: it has asked for what is missing.
Result<bool> Operations::AllDescribed(const Operation& operation, Peer& peer) {
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
    if (!std::exchange(import.asked, true)) s_.Send(peer, Want{.memory = slice.memory});
  }
  return described;
}

void Operations::Launch(const OperationPtr& operation) {
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
  if (!pieces.ok())
    return fail(Error(pieces.status().code(), "memory of ", NameOf(peer), ": ", pieces.status().message()));
  auto transfer = operation->kind == OperationKind::kRead
                      ? peer.connection.Read(*pieces, std::move(options))
                      : peer.connection.Write(*pieces, std::move(options));
  if (!transfer.ok()) return fail(transfer.status());
  operation->transfer = *std::move(transfer);
  s_.changed.notify_all();  // A thread that waits can drive it.
}

void Operations::OnTransferEnd(Operation& operation, Status outcome) {
  const std::lock_guard lock(s_.mutex);
  if (operation.ended) return;
  if (outcome.code() == Code::kCancelled && !operation.reason.ok()) outcome = operation.reason;
  const Channel& channel = *operation.channel;
  if (!Sends(operation) || !channel.status.ok()) return Finish(operation, outcome);
  if (outcome.ok()) {
    s_.Send(*channel.peer, Finished{.channel = channel.wire, .number = operation.number});
    Finish(operation, outcome);
  } else if (outcome.code() == Code::kFenced && !operation.reason.ok()) {
    Finish(operation, operation.reason);  // The receiver has said why.
  } else if (outcome.code() == Code::kFenced) {
    // The receiver took its leave back: it has every byte, or has said why. Either comes as its answer.
    if (!std::exchange(operation.asked, true))
      s_.Send(*channel.peer, Abandon{.channel = channel.wire, .number = operation.number, .reason = outcome});
  } else {
    FailSend(operation, outcome);
  }
}

// --- Receives ----------------------------------------------------------------------------------------

/// In order, but no channel takes all grants of the connection.
void Operations::OfferWhatCanBe(const PeerPtr& peer) {
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
bool Operations::OfferOne(const OperationPtr& receive) {
  GrantOptions options;
  options.transfers = 1;
  options.on_transfer = [this, receive](uint32_t, const GrantProgress&) {
    const std::lock_guard lock(s_.mutex);
    EndReceive(receive, Status::Ok());
  };
  options.ranges.emplace();
  for (const OwnSlice& part : receive->parts) {
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

void Operations::OfferMemory(const Operation& receive) {
  Peer& peer = *receive.channel->peer;
  Offer offer{.channel = receive.channel->wire,
              .number = receive.number,
              .grant = receive.grant,
              .more = false,
              .slices = {}};
  for (const OwnSlice& part : receive.parts) {
    if (part.length == 0) continue;
    if (offer.slices.size() == Offer::kMaxSlices) {
      offer.more = true;
      s_.Send(peer, offer);
      offer.more = false;
      offer.slices.clear();
    }
    memories_.TellOf(peer, *part.memory);
    offer.slices.push_back({.memory = part.memory->id, .offset = part.offset, .length = part.length});
  }
  s_.Send(peer, offer);
}

/// Well or badly: first takes back what the peer may write to, also once it has written all: a chunk that was
/// sent again because a lane failed may still be on its way.
void Operations::EndReceive(const OperationPtr& receive, const Status& outcome) {
  if (receive->ended || receive->ending) return;
  if (receive->grant.id == 0) return Finish(*receive, outcome);
  receive->ending = true;
  receive->limit = Clock::now() + 2 * s_.lease;
  const PeerPtr peer = receive->channel->peer;
  peer->connection.RevokeGrant(receive->grant, [this, peer, receive, outcome] {
    const std::lock_guard lock(s_.mutex);
    --receive->channel->granted;
    Finish(*receive, outcome);
    OfferWhatCanBe(peer);
  });
}

// --- Ends --------------------------------------------------------------------------------------------

void Operations::Finish(Operation& operation, const Status& outcome) {
  if (operation.ended) return;
  operation.ended = true;
  operation.outcome = outcome;
  if (operation.transfer && !operation.transfer->fenced()) operation.limit = Clock::now() + s_.lease;
  Channel& channel = *operation.channel;
  (Sends(operation)      ? channel.sending
   : Receives(operation) ? channel.receiving
                         : channel.one_sided)
      .erase(operation.number);
  if (Receives(operation) && operation.asked) TellEnd(operation);
  Retire(operation);
  s_.changed.notify_all();
}

void Operations::TellWithdrawn(const Operation& receive, const Status& reason) {
  const Channel& channel = *receive.channel;
  if (!channel.status.ok()) return;
  s_.Send(*channel.peer, Withdraw{.channel = channel.wire, .number = receive.number, .reason = reason});
}

/// To a sender who has asked.
void Operations::TellEnd(const Operation& receive) {
  const Channel& channel = *receive.channel;
  if (!receive.outcome.ok()) return TellWithdrawn(receive, receive.outcome);
  if (channel.status.ok())
    s_.Send(*channel.peer, Received{.channel = channel.wire, .number = receive.number});
}

void Operations::Cancel(const OperationPtr& operation, const Status& reason) {
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
bool Operations::IsOver(Operation& operation) {
  const bool late = Clock::now() >= operation.limit;
  if (!operation.ended && operation.ending && late)
    Finish(operation, {Code::kTimedOut, StillThere(*operation.channel->peer)});
  if (!operation.ended) return false;
  if (!operation.transfer || operation.transfer->fenced()) return true;
  // A peer that runs gives back what it has; one that is lost and stopped may not.
  if (!late || operation.channel->peer->lost.ok()) return false;
  operation.outcome = {Code::kTimedOut, StillThere(*operation.channel->peer)};
  return true;
}

/// What was registered for this call alone is no longer told of. Its closing may wait, and this may be the
/// progress thread: the thread that hears of the operation's end does it.
void Operations::Retire(Operation& operation) {
  s_.awaiting.erase(operation.waits_as);
  for (OwnSlice& part : operation.parts) {
    if (part.memory == nullptr || !part.memory->temporary) continue;
    memories_.Drop(*part.memory);
    operation.retired.push_back(std::move(part.memory->region));
  }
}

/// A send, a read or a write. Transfers over a lost connection end by themselves, with its reason.
void Operations::EndUnfinished(Operation& operation, const Status& reason) {
  if (!operation.transfer || operation.asked) return Finish(operation, reason);
  if (operation.reason.ok()) operation.reason = reason;
  if (operation.channel->peer->lost.ok()) operation.transfer->Cancel();
}

}  // namespace weightcast::p2p
