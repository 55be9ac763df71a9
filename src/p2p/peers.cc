#include "p2p/peers.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"

namespace weightcast::p2p {
namespace {

constexpr Duration kOneAttempt = std::chrono::seconds(3);
// More than any script has open at once; a peer that goes beyond is broken or hostile.
constexpr size_t kMaxChannels = 1 << 16;
constexpr size_t kMaxOffers = 1 << 16;
constexpr size_t kMaxImports = 1 << 20;
constexpr size_t kMaxSlices = 4 << 20;  ///< Of all offers that wait for a send.

}  // namespace

// --- Connections -------------------------------------------------------------------------------------

Result<Connection> Peers::ConnectTo(const std::vector<std::string>& addresses, const Identity& expected,
                                    TimePoint deadline, const Interrupted& interrupted) {
  while (true) {
    const TimePoint now = Clock::now();
    auto connection = s_.endpoint->Connect(addresses, expected, std::min(deadline, now + kOneAttempt));
    if (connection.ok()) return connection;
    const Code code = connection.status().code();
    const bool may_come = code == Code::kUnavailable || code == Code::kTimedOut;
    if (!may_come || Clock::now() + kGlance >= deadline) return connection;
    if (interrupted && interrupted()) return InterruptedCall(StrCat("connecting to ", ToString(expected)));
    std::this_thread::sleep_for(kGlance);  // It may not have begun to listen.
  }
}

Result<Connection> Peers::ConnectExactly(const EngineMetadata& peer, TimePoint deadline,
                                         const Interrupted& interrupted) {
  if (peer.incarnation == s_.endpoint->self().incarnation)
    return Status(Code::kInvalidArgument,
                  "connect was given the metadata of this endpoint itself; give that of another endpoint");
  const Identity expected{
      .job = s_.job, .role = kRole, .engine = "", .rank = peer.rank, .incarnation = peer.incarnation};
  return ConnectTo(peer.addresses, expected, deadline, interrupted);
}

PeerPtr Peers::PeerOf(const Connection& connection) {
  const Incarnation incarnation = connection.peer().incarnation;
  if (const auto found = s_.peers.find(incarnation); found != s_.peers.end()) {
    const PeerPtr known = found->second;
    const Status status = known->connection.status();
    if (status.ok()) return known;
    Lose(known, status);  // Its end has not been told yet, and another connection is there already.
  }
  auto peer = std::make_shared<Peer>(connection);
  peer->lower = s_.endpoint->self().incarnation < incarnation;
  s_.peers[incarnation] = peer;
  return peer;
}

Status Peers::LoseIfEnded(const PeerPtr& peer) {
  Status status = peer->connection.status();
  if (!status.ok()) Lose(peer, status);
  return status;
}

void Peers::OnDisconnect(const Identity& identity) {
  const std::lock_guard lock(s_.mutex);
  const auto found = s_.peers.find(identity.incarnation);
  if (found == s_.peers.end()) return;
  const Status status = found->second->connection.status();
  if (!status.ok()) Lose(PeerPtr(found->second), status);
}

void Peers::Lose(const PeerPtr& peer, const Status& reason) {
  if (!peer->lost.ok()) return;
  peer->lost = reason;
  s_.peers.erase(peer->connection.peer().incarnation);
  s_.outbox.Drop(peer->connection.peer().incarnation);
  for (const OperationPtr& operation : std::exchange(peer->describing, {}))
    operations_.Finish(*operation, reason);
  const auto channels = std::exchange(peer->channels, {});
  for (const auto& [wire, channel] : channels) EndChannel(*channel, reason);
  peer->without_grant.clear();
  peer->connection.Close();
}

// --- Channels ----------------------------------------------------------------------------------------

ChannelPtr Peers::AddChannel(const PeerPtr& peer, uint64_t wire, Gpu gpu) {
  auto channel = std::make_shared<Channel>();
  channel->id = ++last_channel_;
  channel->wire = wire;
  channel->peer = peer;
  channel->gpu = std::move(gpu);
  peer->channels[wire] = channel;
  s_.channels[channel->id] = channel;
  return channel;
}

ChannelPtr Peers::SharedChannel(const PeerPtr& peer) {
  // The side that closes it goes on to the next number, and so does the other: what is still said of it names
  // nothing.
  const uint64_t wire = kSharedChannel + peer->shared_generation;
  const auto found = peer->channels.find(wire);
  return found != peer->channels.end() ? found->second : AddChannel(peer, wire, {});
}

/// Off its peer's table.
void Peers::TakeOff(Channel& channel) {
  Peer& peer = *channel.peer;
  if (channel.wire >= kSharedChannel) ++peer.shared_generation;
  peer.channels.erase(channel.wire);
}

void Peers::EndChannel(Channel& channel, const Status& reason) {
  channel.status = reason;
  for (const auto& [number, offered] : channel.offers) channel.peer->offered -= offered.offer.slices.size();
  channel.offers.clear();
  channel.abandoned.clear();
  const auto sending = channel.sending;
  for (const auto& [number, send] : sending) operations_.EndUnfinished(*send, reason);
  const auto one_sided = channel.one_sided;
  for (const auto& [number, operation] : one_sided) operations_.EndUnfinished(*operation, reason);
  const auto receiving = channel.receiving;
  for (const auto& [number, receive] : receiving) operations_.EndReceive(receive, reason);
  // The script never had the number of one that it has not accepted.
  if (std::erase_if(s_.to_accept, [&](const ChannelPtr& waiting) { return waiting.get() == &channel; }) > 0)
    s_.channels.erase(channel.id);
  s_.changed.notify_all();
}

// --- Messages ----------------------------------------------------------------------------------------

void Peers::OnNotice(Connection connection) {
  const std::lock_guard lock(s_.mutex);
  if (s_.endpoint == nullptr || IsOutdated(connection)) return;
  const PeerPtr peer = PeerOf(connection);
  while (peer->lost.ok()) {
    const auto notice = connection.TakeNotice(TimePoint::min());
    if (!notice.ok()) return;
    auto message = Decode(*notice);
    if (!message.ok()) return EndForProtocolError(peer, message.status().message());
    std::visit([&](auto& said) { Heard(peer, std::move(said)); }, *message);
  }
}

/// It has ended, and another one to the same process has taken its place, or its end has been told.
bool Peers::IsOutdated(const Connection& connection) const {
  if (connection.status().ok()) return false;
  const auto found = s_.peers.find(connection.peer().incarnation);
  return found == s_.peers.end() || found->second->connection.status().ok();
}

/// The channel that a message names: the shared one comes to be when it is first named; null for one that was
/// closed here meanwhile.
ChannelPtr Peers::Named(const PeerPtr& peer, uint64_t wire) {
  if (wire == kSharedChannel + peer->shared_generation) return SharedChannel(peer);
  const auto found = peer->channels.find(wire);
  return found == peer->channels.end() ? nullptr : found->second;
}

void Peers::EndForProtocolError(const PeerPtr& peer, const std::string& what) {
  const Status reason = Error(Code::kProtocol, NameOf(*peer), " ", what, kSameRelease);
  WC_LOG(kError, "p2p: ", reason.message());
  Lose(peer, reason);
}

void Peers::Heard(const PeerPtr& peer, const Open& open) {
  const bool theirs =
      (open.channel & 1) == (peer->lower ? 1U : 0U) && open.channel > 1 && open.channel < kSharedChannel;
  if (!theirs || peer->channels.contains(open.channel))
    return EndForProtocolError(peer, "opened a channel with a number of the other side");
  if (peer->channels.size() >= kMaxChannels) return EndForProtocolError(peer, "opened too many channels");
  s_.to_accept.push_back(AddChannel(peer, open.channel, open.gpu));
  s_.changed.notify_all();
}

void Peers::Heard(const PeerPtr& peer, const Close& close) {
  const auto found = peer->channels.find(close.channel);
  if (found == peer->channels.end()) {
    // One's own call may not have named it yet.
    if (close.channel == kSharedChannel + peer->shared_generation) ++peer->shared_generation;
    return;
  }
  const ChannelPtr channel = found->second;
  TakeOff(*channel);
  EndChannel(*channel,
             Error(Code::kUnavailable, NameOf(*peer), " has removed this connection; connect again"));
}

void Peers::Heard(const PeerPtr& peer, const Describe& describe) {
  if (peer->imports.size() >= kMaxImports) return EndForProtocolError(peer, "described too many memories");
  Peer::Import& import = peer->imports[describe.memory];
  if (import.region) return;  // Described already.
  import.asked = false;
  import.reason = describe.reason;
  if (import.reason.ok()) {
    auto region = peer->connection.Import(describe.descriptor);
    import.reason = region.status();
    if (region.ok()) import.region = *region;
  }
  for (const OperationPtr& operation : std::exchange(peer->describing, {})) operations_.Launch(operation);
}

void Peers::Heard(const PeerPtr& peer, const Want& want) {
  const auto found = s_.memories.find(want.memory);
  if (found != s_.memories.end()) {
    peer->told.erase(want.memory);  // It could not use what it was told before.
    return memories_.TellOf(*peer, *found->second);
  }
  s_.Send(*peer, Describe{.memory = want.memory,
                          .reason = Error(
                              Code::kInvalidArgument, "memory ", want.memory, " of the p2p endpoint of rank ",
                              s_.endpoint->self().rank,
                              " is not registered any more; let that endpoint advertise its memory again"),
                          .descriptor = {}});
}

void Peers::Heard(const PeerPtr& peer, const Forget& forget) {
  const auto found = peer->imports.find(forget.memory);
  if (found == peer->imports.end()) return;
  if (found->second.region) peer->connection.Release(*found->second.region);
  peer->imports.erase(found);
}

void Peers::Heard(const PeerPtr& peer, Offer offer) {
  const ChannelPtr channel = Named(peer, offer.channel);
  if (channel == nullptr) return;
  if (offer.grant.id == 0) return EndForProtocolError(peer, "offered memory without a grant");
  const auto send = channel->sending.find(offer.number);
  const bool awaited = send != channel->sending.end();
  if (awaited && send->second->grant.id != 0) return EndForProtocolError(peer, "offered one receive twice");
  if (!awaited && offer.number <= channel->sends) return;  // That send has ended.
  peer->offered += offer.slices.size();
  if (peer->offered > kMaxSlices) return EndForProtocolError(peer, "offered too many pieces");
  auto entry = channel->offers.find(offer.number);
  if (entry == channel->offers.end()) {
    if (channel->offers.size() >= kMaxOffers) return EndForProtocolError(peer, "offered too many receives");
    entry = channel->offers.try_emplace(offer.number, Channel::Offered{std::move(offer), {}}).first;
  } else {
    Offer& before = entry->second.offer;
    if (!before.more || !entry->second.reason.ok())
      return EndForProtocolError(peer, "offered one receive twice");
    before.slices.insert(before.slices.end(), offer.slices.begin(), offer.slices.end());
    before.more = offer.more;
  }
  if (!awaited || entry->second.offer.more) return;
  operations_.MeetOffer(OperationPtr(send->second));
}

void Peers::Heard(const PeerPtr& peer, const Withdraw& withdraw) {
  const ChannelPtr channel = Named(peer, withdraw.channel);
  if (channel == nullptr) return;
  const Status reason =
      Error(withdraw.reason.code(), "the recv of ", NameOf(*peer), " has ended: ", withdraw.reason.message());
  if (const auto found = channel->sending.find(withdraw.number); found != channel->sending.end()) {
    return operations_.EndUnfinished(*OperationPtr(found->second), reason);
  }
  if (withdraw.number <= channel->sends) return;  // It has ended here as well.
  if (channel->offers.size() >= kMaxOffers) return EndForProtocolError(peer, "offered too many receives");
  Channel::Offered& offered = channel->offers[withdraw.number];
  peer->offered -= offered.offer.slices.size();
  offered = {{}, reason};
}

void Peers::Heard(const PeerPtr& peer, const Abandon& abandon) {
  const ChannelPtr channel = Named(peer, abandon.channel);
  if (channel == nullptr) return;
  const Status reason =
      Error(abandon.reason.code(), "the send of ", NameOf(*peer), " has ended: ", abandon.reason.message());
  if (const auto found = channel->receiving.find(abandon.number); found != channel->receiving.end()) {
    const OperationPtr receive = found->second;
    if (receive->ending) {
      receive->asked = true;  // It is about to end.
    } else {
      operations_.EndReceive(receive, reason);
    }
  } else if (abandon.number <= channel->receives) {
    // It has ended here: well, or the peer was told before.
    s_.Send(*peer, Received{.channel = abandon.channel, .number = abandon.number});
  } else {
    if (channel->abandoned.size() >= kMaxOffers) return EndForProtocolError(peer, "abandoned too many sends");
    channel->abandoned[abandon.number] = reason;
  }
}

void Peers::Heard(const PeerPtr& peer, const Finished& finished) {
  const ChannelPtr channel = Named(peer, finished.channel);
  if (channel == nullptr) return;
  const auto found = channel->receiving.find(finished.number);
  if (found != channel->receiving.end()) operations_.EndReceive(OperationPtr(found->second), Status::Ok());
}

void Peers::Heard(const PeerPtr& peer, const Received& received) {
  const ChannelPtr channel = Named(peer, received.channel);
  if (channel == nullptr) return;
  const auto found = channel->sending.find(received.number);
  if (found != channel->sending.end() && found->second->asked)
    operations_.Finish(*OperationPtr(found->second), Status::Ok());
}

}  // namespace weightcast::p2p
