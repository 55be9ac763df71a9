#include "endpoint/connection.h"

#include <algorithm>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"
#include "endpoint/core.h"
#include "trace/metrics.h"

namespace weightcast {

using endpoint::Message;
using endpoint::MessageType;
using transport::LinkId;

static_assert(Connection::kMaxNotice == endpoint::kMaxNotice);
// Notices alone never fill a channel whose peer is slow to read it.
static_assert(endpoint::Notices::kWindow <= endpoint::Channel::kMaxQueued / 2);

namespace {

/// Lanes often die a moment before the control channel of a process that was killed.
constexpr Duration kGrace = std::chrono::milliseconds(20);
/// Heartbeats in a lease.
constexpr int kBeats = 4;
/// However short a lease the peer names.
constexpr Duration kShortestBeat = std::chrono::milliseconds(1);

}  // namespace

Connection::State::State(std::shared_ptr<endpoint::Core> core, const endpoint::Context& context,
                         endpoint::Proven proven)
    : core_(std::move(core)),
      context_(context),
      role_(proven.role),
      peer_lease_(proven.hello.lease),
      view_({.identity = proven.hello.identity,
             .chunk = proven.hello.chunk,
             .address = proven.address,
             .label = StrCat(ToString(proven.hello.identity), " (", proven.address, ")")}),
      imports_([this](transport::RemoteRegion gone) {
        if (core_->forked()) return;
        endpoint::SubmitNow(context_.progress, [core = core_.get(), link = link_.id, gone] {
          core->links().Release(link, gone);
        });
      }),
      grants_(context_.callbacks),
      channel_(std::move(proven.channel)),
      paths_(role_, core_->links().Allowed(),
             {proven.hello.identity.incarnation, view_.peer().label,
              !proven.hello.boot_id.empty() && proven.hello.boot_id == core_->boot_id()},
             {
                 .add_link =
                     [this](transport::Transport* t) { return core_->links().Add(t, shared_from_this()); },
                 .close_link = [this](LinkId link) { core_->links().Close(link); },
                 .drop_link = [this](LinkId link) { core_->links().Drop(link); },
                 .send = [this](const Message& message) { Send(message); },
                 .chosen = [this] { OnChosen(); },
                 .failed = [this](Status reason) { End(std::move(reason)); },
             }),
      sender_({context_.timers, core_->regions(), imports_, context_.callbacks, view_.peer().label}) {}

void Connection::State::Start() {
  const auto keep = shared_from_this();
  channel_.set_limit(endpoint::Channel::kMaxPayload);
  auto key = context_.sockets.Watch(channel_.fd(), EPOLLIN, [this](uint32_t) {
    const auto held = shared_from_this();
    OnSocket();
  });
  if (!key.ok()) return End(key.status());
  socket_key_ = *key;
  OnBeat();
  // Half of the time for a transport to become ready, the rest for what comes before and after.
  const TimePoint deadline = In(context_.options.settings.connect_timeout / 2);
  choice_limit_ = context_.timers.Add(deadline, [this] { paths_.GiveUp(); });
  if (role_ == transport::Role::kInitiator) paths_.Open(deadline);
  if (!ended_) OnSocket();  // What came with the end of the handshake.
}

void Connection::State::End(Status reason) {
  if (std::exchange(ended_, true)) return;
  const auto keep = shared_from_this();
  reason = WithSameRelease(reason);  // Wherever it is read.
  view_.SetEnd(reason);
  context_.timers.Cancel(beat_);
  context_.timers.Cancel(choice_limit_);
  context_.timers.Cancel(grace_);
  context_.sockets.Forget(socket_key_);
  // It may be broken: then the peer learns of it in its own way.
  if (channel_.Send({MessageType::kShutdown, endpoint::EncodeOutcome(reason)}).ok()) {
    core_->lingering().Add(std::move(channel_), /*proven=*/true);
  }
  sender_.EndAll(reason);
  notices_.OnEnd();
  grants_.OnEnd();
  paths_.Close();
  if (link_.transport == nullptr) grants_.OnLinkClosed();
  core_->connections().OnEnded(keep, reason);
  if (!view_.was_ready()) core_->connector().OnLost(view_.peer().identity.incarnation, view_.status());
}

// --- Control channel ---------------------------------------------------------------------------

void Connection::State::Send(const Message& message) {
  if (ended_) return;
  // A socket that takes nothing more may still hold the peer's shutdown message: OnSocket reads it to its
  // end.
  if (Status status = channel_.Send(message); status.code() == Code::kExhausted) return End(status);
  context_.sockets.Change(socket_key_, channel_.waiting() ? uint32_t{EPOLLIN | EPOLLOUT} : uint32_t{EPOLLIN});
}

void Connection::State::OnSocket() {
  const Status sent = channel_.waiting() ? channel_.Flush() : Status::Ok();
  if (!channel_.waiting()) context_.sockets.Change(socket_key_, EPOLLIN);
  Result<size_t> received = size_t{0};
  do {
    received = channel_.Receive();
    while (!ended_) {
      auto message = channel_.Next();
      if (!message.ok()) return End(message.status());
      if (!message->has_value()) break;
      if (Status handled = OnMessage(std::move(**message)); !handled.ok()) return End(handled);
    }
  } while (!ended_ && !sent.ok() && received.ok() && *received > 0);
  const Status why = received.ok() ? sent : received.status();
  if (why.ok()) return;
  End(Error(
      Code::kPeerDead,
      "the peer's process has ended, or the network to it is broken; see the log there: ", why.message()));
}

Status Connection::State::OnMessage(Message message) {
  switch (message.type) {
    case MessageType::kHeartbeat:
      return Status::Ok();
    case MessageType::kOffers:
      return paths_.OnOffers(message.payload, In(context_.options.settings.connect_timeout / 2));
    case MessageType::kAnswers:
      return paths_.OnAnswers(message.payload);
    case MessageType::kPath:
      return paths_.OnPath(message.payload);
    case MessageType::kChosen:
      return paths_.OnChosen(message.payload);
    case MessageType::kNotice: {
      if (link_.transport == nullptr)
        return {Code::kProtocol, "it sent a notice before a transport was chosen"};
      WC_ASSIGN_OR_RETURN(const bool first, notices_.OnNotice(std::move(message.payload)));
      if (first) core_->connections().OnNotice(shared_from_this());
      return Status::Ok();
    }
    case MessageType::kCredit:
      return notices_.OnCredit(message.payload);
    case MessageType::kShutdown: {
      const auto why = endpoint::ParseOutcome(message.payload);
      if (!why) return {Code::kProtocol, "it sent a malformed shutdown message"};
      const bool of_us = why->code() == Code::kProtocol || why->code() == Code::kPeerDead ||
                         why->code() == Code::kExhausted;  // Where the peer's words speak of "it".
      End(Error(Code::kUnavailable, "the peer has ended the connection and says",
                of_us ? " of this process: " : ": ", why->message()));
      return Status::Ok();
    }
    default:
      return Error(Code::kProtocol, "it sent a message of the unknown type ", static_cast<int>(message.type));
  }
}

void Connection::State::OnBeat() {
  const Duration lease = context_.options.settings.lease;
  TimePoint now = Clock::now();
  if (now - channel_.heard() >= lease) {
    // We may have been stopped ourselves: what the peer has said meanwhile waits in the socket.
    const auto keep = shared_from_this();
    OnSocket();
    if (ended_) return;
  }
  if (const Duration silence = now - channel_.heard(); silence >= lease) {
    return End(Error(Code::kPeerDead, "the peer missed heartbeats for ", Seconds(silence),
                     " s; declared dead (lease ", Seconds(lease),
                     " s): check that it runs, and the network to it"));
  }
  // Often enough for either side's lease.
  const Duration beat = std::max(std::min(lease, peer_lease_) / kBeats, kShortestBeat);
  // All connections beat at the same moments, and so do all endpoints of a host: it is woken once for all.
  const TimePoint following((now.time_since_epoch() / beat + 1) * beat);
  if (next_beat_ == TimePoint{}) next_beat_ = following;
  if (now >= next_beat_) {
    next_beat_ = following;
    Send({MessageType::kHeartbeat, {}});
    if (ended_) return;
  }
  beat_ = context_.timers.Add(std::min(next_beat_, channel_.heard() + lease), [this] { OnBeat(); });
}

// --- Transport -----------------------------------------------------------------------------------

void Connection::State::OnChosen() {
  if (ended_) return;
  const endpoint::Paths::Path& path = *paths_.chosen();
  const auto host = path.transport->LimitsOf(MemoryKind::kHost);
  const auto device = path.transport->LimitsOf(MemoryKind::kDevice);
  context_.timers.Cancel(choice_limit_);
  sender_.Start({.transport = path.transport,
                 .link = path.link,
                 .lanes = path.lanes,
                 .window = static_cast<uint32_t>(context_.options.settings.window),
                 .longest_host = host.max_length,
                 .longest_device = device.max_length});
  link_ = {.transport = path.transport,
           .id = path.link,
           .at_once = host.at_once,
           .at_once_device = device.at_once};
  view_.SetLink(path.transport->Describe(path.link), sender_.lanes_up());
  view_.SetReady(path.name);
  WC_LOG(kInfo, "connected: ", view_.Describe());
  core_->connector().OnReady(shared_from_this());
  core_->connections().OnReady(shared_from_this(), role_);
  for (const auto& [lane, reason] : path.lanes_down) On(transport::LaneDown{link_.id, lane, reason});
  if (!path.lost.ok()) On(transport::LinkDown{link_.id, path.lost});
}

void Connection::State::On(const transport::SignalArrived& event) {
  if (ended_ || event.link != link_.id) return;
  if (Status status = grants_.OnSignal(event.signal); !status.ok()) End(std::move(status));
}

void Connection::State::On(const transport::LaneDown& event) {
  if (ended_) return;
  if (link_.transport == nullptr) return paths_.OnLaneDown(event.link, event.lane, event.reason);
  if (event.link != link_.id) return;
  sender_.OnLaneDown(event.lane);
  trace::CounterNamed("endpoint.lanes_lost").Add();
  WC_LOG(kWarning, "lane ", event.lane, " to ", view_.peer().label,
         " has failed: ", WithSameRelease(event.reason).message(), "; ", sender_.lanes_up(), " left");
  view_.SetLink(link_.transport->Describe(link_.id), sender_.lanes_up());
}

void Connection::State::On(const transport::LaneUp& event) {
  if (ended_) return;
  if (link_.transport == nullptr) return paths_.OnLaneUp(event.link, event.lane);
  if (event.link != link_.id) return;
  sender_.OnLaneUp(event.lane);
  trace::CounterNamed("endpoint.lanes_rebuilt").Add();
  WC_LOG(kInfo, "lane ", event.lane, " to ", view_.peer().label, " works again; ", sender_.lanes_up(),
         " are up");
  view_.SetLink(link_.transport->Describe(link_.id), sender_.lanes_up());
}

void Connection::State::On(const transport::LinkDown& event) {
  if (ended_) return;
  if (link_.transport == nullptr || event.link != link_.id) return paths_.OnDown(event.link, event.reason);
  context_.timers.Cancel(grace_);
  const Status reason(event.reason.code() == Code::kPeerDead ? Code::kPeerDead : Code::kUnavailable,
                      StrCat("the link to the peer has failed: ", WithSameRelease(event.reason).message()));
  grace_ = context_.timers.Add(In(kGrace), [this, reason] {
    const auto keep = shared_from_this();
    OnSocket();
    End(reason);
  });
}

void Connection::State::On(const transport::Revoked& event) {
  if (event.link == link_.id) grants_.OnRevoked(event.grant);
}

void Connection::State::On(const transport::LinkClosed& event) {
  if (link_.transport == nullptr || event.link != link_.id) return;
  End(Error(Code::kUnavailable, "transport ", view_.transport_name(), " closed link ",
            static_cast<uint32_t>(link_.id), " to the peer without being told to; connect again to go on",
            kReportBug));
  sender_.OnLinkClosed();
  grants_.OnLinkClosed();
}

Status Connection::State::CheckUsable() const {
  WC_RETURN_IF_ERROR(core_->Usable());
  return view_.status();
}

}  // namespace weightcast
