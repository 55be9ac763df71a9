#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "p2p/engine.h"

// What peers say, and what is said to them.
namespace weightcast::p2p {
namespace {

// More than any script has open at once; a peer that goes beyond is broken or hostile.
constexpr size_t kMaxChannels = 1 << 16;
constexpr size_t kMaxOffers = 1 << 16;
constexpr size_t kMaxImports = 1 << 20;
constexpr size_t kMaxSlices = 4 << 20;  ///< Of all offers that wait for a send.

}  // namespace

void Engine::OnNotice(Connection connection) {
  const std::lock_guard lock(mutex_);
  if (endpoint_ == nullptr || IsOutdated(connection)) return;
  const PeerPtr peer = PeerOf(connection);
  while (peer->lost.ok()) {
    const auto notice = connection.TakeNotice(TimePoint::min());
    if (!notice.ok()) return;
    auto message = Decode(*notice);
    if (!message.ok()) return Accuse(peer, message.status().message());
    Hear(peer, *std::move(message));
  }
}

void Engine::Hear(const PeerPtr& peer, Message message) {
  std::visit([&](auto& said) { Heard(peer, std::move(said)); }, message);
}

/// It has ended, and another one to the same process has taken its place, or its end has been told.
bool Engine::IsOutdated(const Connection& connection) const {
  if (connection.status().ok()) return false;
  const auto found = peers_.find(connection.peer().incarnation);
  return found == peers_.end() || found->second->connection.status().ok();
}

/// The channel that a message names: the shared one comes to be when it is first named; null for one that was
/// closed here meanwhile.
ChannelPtr Engine::Named(const PeerPtr& peer, uint64_t wire) {
  if (wire == kSharedChannel + peer->shared_generation) return SharedChannel(peer);
  const auto found = peer->channels.find(wire);
  return found == peer->channels.end() ? nullptr : found->second;
}

void Engine::Accuse(const PeerPtr& peer, const std::string& what) {
  const Status reason(Code::kProtocol,
                      StrCat(NameOf(*peer), " ", what, "; run the same release of weightcast on both sides"));
  WC_LOG(kError, "p2p: ", reason.message());
  Lose(peer, reason);
}

void Engine::Heard(const PeerPtr& peer, const Open& open) {
  const bool theirs =
      (open.channel & 1) == (peer->lower ? 1U : 0U) && open.channel > 1 && open.channel < kSharedChannel;
  if (!theirs || peer->channels.contains(open.channel))
    return Accuse(peer, "opened a channel with a number of the other side");
  if (peer->channels.size() >= kMaxChannels) return Accuse(peer, "opened too many channels");
  to_accept_.push_back(AddChannel(peer, open.channel, open.gpu));
  changed_.notify_all();
}

void Engine::Heard(const PeerPtr& peer, const Close& close) {
  const auto found = peer->channels.find(close.channel);
  if (found == peer->channels.end()) {
    // One's own call may not have named it yet.
    if (close.channel == kSharedChannel + peer->shared_generation) ++peer->shared_generation;
    return;
  }
  const ChannelPtr channel = found->second;
  TakeOff(*channel);
  EndChannel(*channel,
             {Code::kUnavailable, StrCat(NameOf(*peer), " has removed this connection; connect again")});
}

void Engine::Heard(const PeerPtr& peer, const Describe& describe) {
  if (peer->imports.size() >= kMaxImports) return Accuse(peer, "described too many memories");
  Peer::Import& import = peer->imports[describe.memory];
  if (import.region) return;  // Described already.
  import.asked = false;
  import.reason = describe.reason;
  if (import.reason.ok()) {
    auto region = peer->connection.Import(describe.descriptor);
    import.reason = region.status();
    if (region.ok()) import.region = *region;
  }
  for (const OperationPtr& operation : std::exchange(peer->describing, {})) Launch(operation);
}

void Engine::Heard(const PeerPtr& peer, const Want& want) {
  const auto found = memories_.find(want.memory);
  if (found != memories_.end()) {
    peer->told.erase(want.memory);  // It could not use what it was told before.
    return TellOf(*peer, *found->second);
  }
  Tell(*peer, Describe{.memory = want.memory,
                       .reason = {Code::kInvalidArgument,
                                  StrCat("the peer's memory ", want.memory,
                                         " is not registered any more; get its description again")},
                       .descriptor = {}});
}

void Engine::Heard(const PeerPtr& peer, const Forget& forget) {
  const auto found = peer->imports.find(forget.memory);
  if (found == peer->imports.end()) return;
  if (found->second.region) peer->connection.Release(*found->second.region);
  peer->imports.erase(found);
}

void Engine::Heard(const PeerPtr& peer, Offer offer) {
  const ChannelPtr channel = Named(peer, offer.channel);
  if (channel == nullptr) return;
  if (offer.grant.id == 0) return Accuse(peer, "offered memory without a grant");
  const auto send = channel->sending.find(offer.number);
  const bool awaited = send != channel->sending.end();
  if (awaited && send->second->grant.id != 0) return Accuse(peer, "offered one receive twice");
  if (!awaited && offer.number <= channel->sends) return;  // That send has ended.
  peer->offered += offer.slices.size();
  if (peer->offered > kMaxSlices) return Accuse(peer, "offered too many pieces");
  auto entry = channel->offers.find(offer.number);
  if (entry == channel->offers.end()) {
    if (channel->offers.size() >= kMaxOffers) return Accuse(peer, "offered too many receives");
    entry = channel->offers.try_emplace(offer.number, Channel::Offered{std::move(offer), {}}).first;
  } else {
    Offer& before = entry->second.offer;
    if (!before.more || !entry->second.reason.ok()) return Accuse(peer, "offered one receive twice");
    before.slices.insert(before.slices.end(), offer.slices.begin(), offer.slices.end());
    before.more = offer.more;
  }
  if (!awaited || entry->second.offer.more) return;
  MeetOffer(OperationPtr(send->second));
}

void Engine::Heard(const PeerPtr& peer, const Withdraw& withdraw) {
  const ChannelPtr channel = Named(peer, withdraw.channel);
  if (channel == nullptr) return;
  const Status reason(withdraw.reason.code(),
                      StrCat("the recv of ", NameOf(*peer), " has ended: ", withdraw.reason.message()));
  if (const auto found = channel->sending.find(withdraw.number); found != channel->sending.end()) {
    return EndUnfinished(*OperationPtr(found->second), reason);
  }
  if (withdraw.number <= channel->sends) return;  // It has ended here as well.
  if (channel->offers.size() >= kMaxOffers) return Accuse(peer, "offered too many receives");
  Channel::Offered& offered = channel->offers[withdraw.number];
  peer->offered -= offered.offer.slices.size();
  offered = {{}, reason};
}

void Engine::Heard(const PeerPtr& peer, const Abandon& abandon) {
  const ChannelPtr channel = Named(peer, abandon.channel);
  if (channel == nullptr) return;
  const Status reason(abandon.reason.code(),
                      StrCat("the send of ", NameOf(*peer), " has ended: ", abandon.reason.message()));
  if (const auto found = channel->receiving.find(abandon.number); found != channel->receiving.end()) {
    const OperationPtr receive = found->second;
    if (receive->ending) {
      receive->asked = true;  // It is about to end.
    } else {
      EndReceive(receive, reason);
    }
  } else if (abandon.number <= channel->receives) {
    // It has ended here: well, or the peer was told before.
    Tell(*peer, Received{.channel = abandon.channel, .number = abandon.number});
  } else {
    if (channel->abandoned.size() >= kMaxOffers) return Accuse(peer, "abandoned too many sends");
    channel->abandoned[abandon.number] = reason;
  }
}

void Engine::Heard(const PeerPtr& peer, const Finished& finished) {
  const ChannelPtr channel = Named(peer, finished.channel);
  if (channel == nullptr) return;
  const auto found = channel->receiving.find(finished.number);
  if (found != channel->receiving.end()) EndReceive(OperationPtr(found->second), Status::Ok());
}

void Engine::Heard(const PeerPtr& peer, const Received& received) {
  const ChannelPtr channel = Named(peer, received.channel);
  if (channel == nullptr) return;
  const auto found = channel->sending.find(received.number);
  if (found != channel->sending.end() && found->second->asked)
    Finish(*OperationPtr(found->second), Status::Ok());
}

void Engine::Tell(const Peer& peer, const Message& message) {
  if (outbox_.Post(peer.connection, Encode(message))) return;
  Connection(peer.connection).Close();  // It reads nothing and yet wants more: its end is told soon.
}

void Engine::TellOf(Peer& peer, const Memory& memory) {
  if (!peer.told.insert(memory.id).second) return;
  Tell(peer, Describe{.memory = memory.id, .reason = {}, .descriptor = memory.region->Descriptor()});
}

}  // namespace weightcast::p2p
