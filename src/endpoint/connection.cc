#include "endpoint/connection.h"

#include <algorithm>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"
#include "endpoint/core.h"
#include "endpoint/slices.h"
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

Connection::State::State(std::shared_ptr<endpoint::Core> core, endpoint::Proven proven)
    : core_(std::move(core)),
      role_(proven.role),
      hello_(std::move(proven.hello)),
      address_(std::move(proven.address)),
      label_(StrCat(ToString(hello_.identity), " (", address_, ")")),
      imports_([this](transport::RemoteRegion gone) {
        if (core_->forked()) return;
        endpoint::SubmitNow(core_->progress(),
                            [core = core_.get(), link = link_, gone] { core->links().Release(link, gone); });
      }),
      grants_([core = core_.get()](auto callback) { core->progress().LaterForUser(std::move(callback)); }),
      channel_(std::move(proven.channel)),
      paths_(role_, core_->links().Allowed(),
             {hello_.identity.incarnation, label_,
              !hello_.boot_id.empty() && hello_.boot_id == core_->boot_id()},
             {
                 .add_link =
                     [this](transport::Transport* t) { return core_->links().Add(t, shared_from_this()); },
                 .close_link = [this](LinkId link) { core_->links().Close(link); },
                 .drop_link = [this](LinkId link) { core_->links().Drop(link); },
                 .send = [this](const Message& message) { Send(message); },
                 .chosen = [this] { OnChosen(); },
                 .failed = [this](Status reason) { End(std::move(reason)); },
             }),
      sender_({core_->timers(), core_->regions(), imports_,
               [core = core_.get()](auto callback) { core->progress().LaterForUser(std::move(callback)); },
               label_}) {}

void Connection::State::Start() {
  const auto keep = shared_from_this();
  channel_.set_limit(endpoint::Channel::kMaxPayload);
  auto key = core_->sockets().Watch(channel_.fd(), EPOLLIN, [this](uint32_t) {
    const auto held = shared_from_this();
    OnSocket();
  });
  if (!key.ok()) return End(key.status());
  socket_key_ = *key;
  OnBeat();
  // Half of the time for a transport to become ready, the rest for what comes before and after.
  const TimePoint deadline = In(core_->settings().connect_timeout / 2);
  choice_limit_ = core_->timers().Add(deadline, [this] { paths_.GiveUp(); });
  if (role_ == transport::Role::kInitiator) paths_.Open(deadline);
  if (!ended_) OnSocket();  // What came with the end of the handshake.
}

void Connection::State::End(Status reason) {
  if (std::exchange(ended_, true)) return;
  const auto keep = shared_from_this();
  end_reason_ = reason;
  view_.SetEnd(reason, label_);
  core_->timers().Cancel(beat_);
  core_->timers().Cancel(choice_limit_);
  core_->timers().Cancel(grace_);
  core_->sockets().Forget(socket_key_);
  // It may be broken: then the peer learns of it in its own way.
  if (channel_.Send({MessageType::kShutdown, endpoint::EncodeOutcome(reason)}).ok()) {
    core_->lingering().Add(std::move(channel_), /*proven=*/true);
  }
  sender_.EndAll(reason);
  notices_.OnEnd();
  grants_.OnEnd();
  paths_.Close();
  if (transport_ == nullptr) grants_.OnLinkClosed();
  core_->connections().OnEnded(keep, reason);
  if (!view_.was_ready()) core_->connector().OnLost(peer().incarnation, reason);
}

// --- Control channel ---------------------------------------------------------------------------

void Connection::State::Send(const Message& message) {
  if (ended_) return;
  // A socket that takes nothing more may still hold the peer's shutdown message: OnSocket reads it to its
  // end.
  if (Status status = channel_.Send(message); status.code() == Code::kExhausted) return End(status);
  core_->sockets().Change(socket_key_, channel_.waiting() ? uint32_t{EPOLLIN | EPOLLOUT} : uint32_t{EPOLLIN});
}

void Connection::State::OnSocket() {
  const Status sent = channel_.waiting() ? channel_.Flush() : Status::Ok();
  if (!channel_.waiting()) core_->sockets().Change(socket_key_, EPOLLIN);
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
  End({Code::kPeerDead,
       StrCat("the peer's process has ended, or the network to it is broken; see the log there: ",
              why.message())});
}

Status Connection::State::OnMessage(Message message) {
  switch (message.type) {
    case MessageType::kHeartbeat:
      return Status::Ok();
    case MessageType::kOffers:
      return paths_.OnOffers(message.payload, In(core_->settings().connect_timeout / 2));
    case MessageType::kAnswers:
      return paths_.OnAnswers(message.payload);
    case MessageType::kPath:
      return paths_.OnPath(message.payload);
    case MessageType::kChosen:
      return paths_.OnChosen(message.payload);
    case MessageType::kNotice: {
      if (transport_ == nullptr) return {Code::kProtocol, "it sent a notice before a transport was chosen"};
      WC_ASSIGN_OR_RETURN(const bool first, notices_.OnNotice(std::move(message.payload)));
      if (first) core_->connections().OnNotice(shared_from_this());
      return Status::Ok();
    }
    case MessageType::kCredit:
      return notices_.OnCredit(message.payload);
    case MessageType::kShutdown: {
      const auto why = endpoint::ParseOutcome(message.payload);
      if (!why) return {Code::kProtocol, "it sent a malformed shutdown message"};
      End({Code::kUnavailable, StrCat("the peer has ended the connection and says: ", why->message())});
      return Status::Ok();
    }
    default:
      return {Code::kProtocol,
              StrCat("it sent a message of the unknown type ", static_cast<int>(message.type))};
  }
}

void Connection::State::OnBeat() {
  const Duration lease = core_->settings().lease;
  TimePoint now = Clock::now();
  if (now - channel_.heard() >= lease) {
    // We may have been stopped ourselves: what the peer has said meanwhile waits in the socket.
    const auto keep = shared_from_this();
    OnSocket();
    if (ended_) return;
  }
  if (const Duration silence = now - channel_.heard(); silence >= lease) {
    return End({Code::kPeerDead,
                StrCat("the peer missed heartbeats for ", Seconds(silence), " s; declared dead (lease ",
                       Seconds(lease), " s): check that it runs, and the network to it")});
  }
  // Often enough for either side's lease.
  const Duration beat = std::max(std::min(lease, hello_.lease) / kBeats, kShortestBeat);
  // All connections beat at the same moments, and so do all endpoints of a host: it is woken once for all.
  const TimePoint following((now.time_since_epoch() / beat + 1) * beat);
  if (next_beat_ == TimePoint{}) next_beat_ = following;
  if (now >= next_beat_) {
    next_beat_ = following;
    Send({MessageType::kHeartbeat, {}});
    if (ended_) return;
  }
  beat_ = core_->timers().Add(std::min(next_beat_, channel_.heard() + lease), [this] { OnBeat(); });
}

// --- Transport -----------------------------------------------------------------------------------

void Connection::State::OnChosen() {
  if (ended_) return;
  const endpoint::Paths::Path& path = *paths_.chosen();
  const auto can = [&](transport::OpKind op, MemoryKind kind) { return path.transport->Can(op, kind, kind); };
  const auto write = can(transport::OpKind::kWrite, MemoryKind::kHost);
  const auto device = can(transport::OpKind::kWrite, MemoryKind::kDevice);
  core_->timers().Cancel(choice_limit_);
  sender_.Start({.transport = path.transport,
                 .link = path.link,
                 .lanes = path.lanes,
                 .window = static_cast<uint32_t>(core_->settings().window),
                 .longest_write = write.max_length,
                 .longest_read = can(transport::OpKind::kRead, MemoryKind::kHost).max_length,
                 .longest_device = device.max_length});
  transport_ = path.transport;
  link_ = path.link;
  at_once_ = write.at_once;
  at_once_device_ = device.at_once;
  Describe();
  view_.SetReady(path.name, device.supported);
  WC_LOG(kInfo, "connected: ", view_.Describe());
  core_->connector().OnReady(shared_from_this());
  core_->connections().OnReady(shared_from_this(), role_);
  for (const uint32_t lane : path.lanes_down) {
    On(transport::LaneDown{link_, lane, {Code::kUnavailable, "it failed before the transport was chosen"}});
  }
  if (!path.lost.ok()) On(transport::LinkDown{link_, path.lost});
}

/// With the lanes that are up at this moment. Holder of progress, once a transport is chosen.
void Connection::State::Describe() {
  const uint32_t lanes = sender_.lanes_up();
  view_.SetDescription(StrCat(transport_->Describe(link_), ", ", lanes, lanes == 1 ? " lane" : " lanes",
                              ", to ", ToString(peer()), " at ", address_),
                       lanes);
}

void Connection::State::On(const transport::SignalArrived& event) {
  if (ended_ || event.link != link_) return;
  if (Status status = grants_.OnSignal(event.signal); !status.ok()) End(std::move(status));
}

void Connection::State::On(const transport::LaneDown& event) {
  if (ended_) return;
  if (transport_ == nullptr) return paths_.OnLaneDown(event.link, event.lane);
  if (event.link != link_) return;
  sender_.OnLaneDown(event.lane);
  trace::CounterNamed("endpoint.lanes_lost").Add();
  WC_LOG(kWarning, "lane ", event.lane, " to ", label_,
         " has failed: ", WithSameRelease(event.reason).message(), "; ", sender_.lanes_up(), " left");
  Describe();
}

void Connection::State::On(const transport::LaneUp& event) {
  if (ended_) return;
  if (transport_ == nullptr) return paths_.OnLaneUp(event.link, event.lane);
  if (event.link != link_) return;
  sender_.OnLaneUp(event.lane);
  trace::CounterNamed("endpoint.lanes_rebuilt").Add();
  WC_LOG(kInfo, "lane ", event.lane, " to ", label_, " works again; ", sender_.lanes_up(), " are up");
  Describe();
}

void Connection::State::On(const transport::LinkDown& event) {
  if (ended_) return;
  if (transport_ == nullptr || event.link != link_) return paths_.OnDown(event.link, event.reason);
  core_->timers().Cancel(grace_);
  const Status reason(event.reason.code() == Code::kPeerDead ? Code::kPeerDead : Code::kUnavailable,
                      StrCat("the link to the peer has failed: ", WithSameRelease(event.reason).message()));
  grace_ = core_->timers().Add(In(kGrace), [this, reason] {
    const auto keep = shared_from_this();
    OnSocket();
    End(reason);
  });
}

void Connection::State::On(const transport::Revoked& event) {
  if (event.link == link_) grants_.OnRevoked(event.grant);
}

void Connection::State::On(const transport::LinkClosed& event) {
  if (transport_ == nullptr || event.link != link_) return;
  End({Code::kUnavailable,
       StrCat("the transport closed the link to the peer without being told to; connect again to go on",
              kReportBug)});
  sender_.OnLinkClosed();
  grants_.OnLinkClosed();
}

// --- Any thread ------------------------------------------------------------------------------------

Status Connection::State::CheckUsable() const {
  WC_RETURN_IF_ERROR(core_->Usable());
  return view_.status();
}

Result<transport::GrantName> Connection::State::OpenGrant(GrantOptions options) {
  WC_RETURN_IF_ERROR(CheckUsable());
  transport::GrantReach reach;
  if (options.ranges) {
    WC_ASSIGN_OR_RETURN(reach, core_->regions().ReachOf(*options.ranges));
    options.ranges.reset();
  }
  Result<transport::GrantName> result = Status(Code::kInternal, "not run");
  core_->progress().Call([&] {
    if (ended_) {
      result = view_.status();
      return;
    }
    result = grants_.Reserve(std::move(options));
    if (!result.ok()) return;
    if (Status opened = transport_->OpenGrant(link_, *result, std::move(reach)); !opened.ok()) {
      grants_.Drop(*result);
      result = opened;
    }
  });
  if (result.ok() || !view_.status().ok()) return result;
  return Status(result.status().code(),
                StrCat("cannot open a grant for ", label_, ": ", result.status().message()));
}

Status Connection::State::WaitGrant(const transport::GrantName& grant, uint32_t transfers,
                                    TimePoint deadline) {
  if (core_->forked()) return core_->Usable();
  const auto arrived = grants_.ArrivedOf(grant);
  if (arrived != nullptr && core_->progress().WaitFor(arrived->waited, transfers, deadline) &&
      arrived->transfers.load(std::memory_order_acquire) >= transfers) {
    return Status::Ok();
  }
  WC_RETURN_IF_ERROR(view_.status());
  if (arrived == nullptr || arrived->waited.value() == endpoint::Grants::Arrived::kGone) {
    return {Code::kCancelled,
            StrCat("there is no such grant for ", label_, ", or it has been revoked; open a new one")};
  }
  return {Code::kTimedOut, StrCat(arrived->transfers.load(), " of ", transfers,
                                  " transfers have come within the timeout of this call under the grant of ",
                                  label_, "; check that it runs and writes, then wait again")};
}

void Connection::State::RevokeGrant(const transport::GrantName& grant, std::function<void()> fenced) {
  if (core_->forked()) return;
  endpoint::SubmitNow(core_->progress(), [self = shared_from_this(), grant, fenced = std::move(fenced)] {
    const bool first = self->grants_.Revoke(grant, fenced);
    // Once the link closes, that fences everything.
    if (first && !self->ended_) self->transport_->Revoke(self->link_, grant);
  });
}

void Connection::State::Close() {
  if (core_->forked()) return;
  const Status closed(Code::kCancelled, "this process closed the connection; connect again to go on");
  view_.SetEnd(closed, label_);  // At once, so that nobody is given a connection that is about to end.
  endpoint::SubmitNow(core_->progress(), [self = shared_from_this(), closed] { self->End(closed); });
}

// --- Notices ---------------------------------------------------------------------------------------

Status Connection::State::Notify(std::string_view bytes) {
  if (bytes.size() > kMaxNotice) {
    return {Code::kInvalidArgument, StrCat("a notice of ", bytes.size(), " bytes, more than ", kMaxNotice,
                                           "; send them by a write into a region of the peer")};
  }
  WC_RETURN_IF_ERROR(CheckUsable());
  if (!notices_.Reserve(bytes.size())) {
    return {Code::kExhausted,
            StrCat(label_, " has not taken the notices that were sent before; let it call take_notice")};
  }
  endpoint::SubmitNow(core_->progress(), [self = shared_from_this(), notice = std::string(bytes)] {
    if (self->ended_) return;
    self->notices_.OnSent(notice.size());
    self->Send({MessageType::kNotice, notice});
  });
  return Status::Ok();
}

Status Connection::State::Notify(std::string_view bytes, TimePoint deadline) {
  while (true) {
    const uint32_t before = notices_.credited().value();
    Status status = Notify(bytes);
    if (status.code() != Code::kExhausted) return status;
    if (Clock::now() >= deadline) return {Code::kTimedOut, status.message()};
    core_->progress().WaitFor(notices_.credited(), before + 1, deadline);
  }
}

Result<std::string> Connection::State::TakeNotice(TimePoint deadline) {
  if (core_->forked()) return core_->Usable();
  while (true) {
    const uint32_t before = notices_.arrived().value();
    Status end = view_.status();  // Before the look: what came before the end is there.
    if (auto notice = notices_.Take()) {
      if (notices_.CreditDue()) {
        endpoint::SubmitNow(core_->progress(), [self = shared_from_this()] {
          // One credit grows beyond the one before, in the order in which they are sent.
          self->Send({MessageType::kCredit, self->notices_.NextCredit()});
        });
      }
      return std::move(*notice);
    }
    if (!end.ok()) return end;
    if (Clock::now() >= deadline) {
      return Status(Code::kTimedOut,
                    StrCat("no notice has come within the timeout of this call from ", label_,
                           "; check that it runs and calls Notify, then wait again"));
    }
    core_->progress().WaitFor(notices_.arrived(), before + 1, deadline);
  }
}

}  // namespace weightcast
