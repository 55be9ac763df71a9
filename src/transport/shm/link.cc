#include "transport/shm/link.h"

#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/process.h"
#include "base/strings.h"

namespace weightcast::transport::shm {
namespace {

/// A process that ends closes its sockets just before its end can be seen: so long that is waited for.
constexpr Duration kGrace = std::chrono::milliseconds(100);
/// Not every lack of room ends with the socket's becoming writable: the user's descriptors under way, say.
constexpr Duration kFlush = std::chrono::milliseconds(1);
/// Run inside one Post.
constexpr uint32_t kInlineOperations = 64;
constexpr int kMessagesAtOnce = 64;

}  // namespace

Result<std::unique_ptr<Link>> Link::Create(Context& context, LinkId id, Incarnation peer,
                                           TimePoint deadline) {
  WC_ASSIGN_OR_RETURN(auto inbox, OwnInbox::Create());
  return std::unique_ptr<Link>(new Link(context, id, peer, deadline, std::move(inbox)));
}

Link::Link(Context& context, LinkId id, Incarnation peer, TimePoint deadline, OwnInbox inbox)
    : link_(context, id, peer, std::move(inbox)), deadline_(deadline) {}

Link::~Link() {
  if (link_.channel.valid() && link_.sources.empty())
    (void)link_.channel.Send(Encode(Dropped{.region = {}, .all = true}));
  if (link_.channel.valid()) link_.context.poller.Remove(link_.channel.fd());
  link_.channel.Close();
  if (link_.pidfd.valid()) link_.context.poller.Remove(link_.pidfd.get());
}

std::string Link::Describe() const {
  if (link_.state == State::kOpening) return "shm: connecting";
  if (!link_.sender) return "shm: not connected";
  const std::string other = link_.paths.refusal.empty()
                                ? "cross-process copy"
                                : StrCat("ring (cross-process copy refused: ", link_.paths.refusal, ")");
  return StrCat("shm: mapped memory and ", other,
                link_.staging->in_use() ? "; device memory staged through host memory, " : ", ",
                link_.PeerName());
}

void Link::Connect(const Invitation& answer) {
  if (const Status status = greeting_.Connect(answer); !status.ok()) Down(status);
}

void Link::Adopt(Channel channel, const Channel::Incoming& hello) {
  if (const Status status = greeting_.Adopt(std::move(channel), hello); !status.ok()) Down(status);
}

void Link::BecomeReady() {
  link_.state = State::kReady;
  link_.inbox.CloseFd();
  link_.inbox.Open();
  link_.inbox.OpenSources();
  link_.context.events.Push(LinkReady{.link = link_.id, .lanes = 1});
  link_.context.peer_regions.ForEach(link_.id, [this](PeerRegion& region) { regions_.Import(region); });
}

Status Link::OnMessage(Channel::Incoming& message) {
  WC_ASSIGN_OR_RETURN(const MessageKind kind, KindOf(message.bytes));
  const bool ready = link_.state == State::kReady;
  if (kind == MessageKind::kBell) return Status::Ok();
  if (kind == MessageKind::kBye) {
    link_.bye_seen = true;
    return Status::Ok();
  }
  if (greeting_.Awaits(kind)) {
    WC_RETURN_IF_ERROR(greeting_.OnMessage(kind, message));
    if (greeting_.done()) BecomeReady();
    return Status::Ok();
  }
  if (kind == MessageKind::kWantRegion && ready)
    return DecodeFor<WantRegion>(message.bytes, [&](const auto& m) { return regions_.On(m); });
  if (kind == MessageKind::kRegion && ready)
    return DecodeFor<RegionReply>(message.bytes, [&](const auto& m) { return regions_.On(m, message.fds); });
  if (kind == MessageKind::kRing && ready)
    return DecodeFor<RingReply>(message.bytes, [&](const auto& m) { return regions_.On(m, message.fds); });
  if (kind >= MessageKind::kWantSource && ready) return devices_.OnMessage(kind, std::move(message));
  return Error(Code::kProtocol, "it sent a message of kind ", static_cast<int>(kind),
               " over shared memory before that connection was ready");
}

void Link::OnChannel() {
  if (!link_.channel.valid()) return;
  // What cannot be sent does not keep us from what the peer has sent, its hang-up above all.
  const Status sent = link_.channel.Flush();
  Status status;
  for (int i = 0; i < kMessagesAtOnce && status.ok(); ++i) {
    if (link_.channel.congested() && sent.ok() && !link_.over()) break;
    auto message = link_.channel.Receive();
    if (!message.ok()) {
      if (message.status().code() == Code::kUnavailable) {
        link_.CloseChannel();
        return HangUp();
      }
      status = message.status();
      break;
    }
    if (!*message) {
      if (!link_.over()) status = sent;
      break;
    }
    // Only the hang-up is still of interest, and whether our device memory is mapped there.
    if (link_.over()) {
      const auto dropped = Decode<Dropped>((*message)->bytes);
      if (dropped.ok()) status = link_.offers.OnDropped(*dropped);
      continue;
    }
    status = OnMessage(**message);
    if (link_.bye_seen) return HangUp();
  }
  if (status.ok()) return link_.UpdateInterest();
  if (!link_.over()) Down(status);
  if (link_.channel_needed() && status.code() != Code::kUnavailable) return link_.UpdateInterest();
  // Where no descriptor stands for the process, its hang-up is the only proof of its end.
  if (!link_.pidfd.valid() && status.code() == Code::kUnavailable) return link_.UpdateInterest();
  link_.CloseChannel();
}

void Link::OnProcess() {
  fences_.OnGone();
  link_.context.poller.Remove(link_.pidfd.get());
  if (link_.state == State::kDown || link_.state == State::kClosing) return;
  Down(Error(Code::kPeerDead, "the peer process has ended (", link_.PeerName(), "); see its log"));
}

void Link::OnTime(TimePoint now) {
  fences_.OnTime(now);
  if (link_.channel.valid() && link_.channel.waiting() && now >= flush_at_) {
    flush_at_ = now + kFlush;
    OnChannel();
  }
  if (link_.state == State::kHungUp && now >= deadline_) {
    return Down(
        Error(Code::kUnavailable, "the peer's socket was closed (", link_.PeerName(), "); see its log"));
  }
  if (link_.state != State::kOpening) return;
  if (now >= deadline_)
    return Down(Error(Code::kTimedOut,
                      "the peer did not answer over shared memory within half of setting connect_timeout",
                      kSeePeer));
  if (const Status status = greeting_.Step(now); !status.ok()) Down(status);
}

std::optional<TimePoint> Link::due() const {
  std::optional<TimePoint> due;
  if (link_.channel.valid() && link_.channel.waiting()) due = flush_at_;
  const auto earlier = [&](std::optional<TimePoint> when) {
    if (when && (!due || *when < *due)) due = when;
  };
  earlier(fences_.due());
  if (link_.state == State::kHungUp || link_.state == State::kOpening) earlier(deadline_);
  if (link_.state == State::kOpening) earlier(greeting_.due());
  return due;
}

size_t Link::Post(std::span<const Op> ops, Budget& budget) {
  if (link_.state != State::kReady) return 0;
  const size_t taken = link_.sender->queue().Take(ops);
  budget.operations = kInlineOperations;
  link_.sender->Run(budget);
  return taken;
}

bool Link::Turn(Budget& budget) {
  const auto devices = devices_.Step();
  if (!devices.ok()) {
    Down(devices.status());
    return true;
  }
  bool any = *devices;
  if (link_.state != State::kReady && link_.state != State::kHungUp) return any;
  Budget incoming{.bytes = kPieceBytes};
  Status status = link_.receiver->Drain(incoming, any);
  if (link_.state == State::kReady && status.ok()) {
    Budget staged = incoming;  // Of its own: pulls may always find more.
    any |= link_.receiver->RunPulls(incoming);
    any |= link_.receiver->RunStaged(staged);
    any |= link_.sender->Run(budget);
    any |= link_.receiver->Serve(budget);
    status = regions_.Step();
  }
  if (status.ok() && (link_.outbox->broken() || link_.staging->out.broken()))
    status = {Code::kProtocol, "its counters in shared memory count more than was sent"};
  if (status.ok()) return any;
  Down(status);
  return true;
}

void Link::Arm(bool fences) {
  armed_ = true;
  const bool space =
      link_.state == State::kReady && (!link_.sender->queue().empty() || link_.receiver->owes());
  link_.inbox.shared().wake.store(kWakeRecords | (space ? kWakeSpace : 0) | (fences ? kWakeFence : 0),
                                  std::memory_order_seq_cst);
}

void Link::Disarm() {
  if (std::exchange(armed_, false)) link_.inbox.shared().wake.store(0, std::memory_order_seq_cst);
}

void Link::HangUp() {
  if (!link_.bye_seen || !link_.channel_needed()) link_.CloseChannel();
  if (link_.state == State::kDown || link_.state == State::kClosing) {
    // Without a descriptor for the process its hang-up must do: see docs/wire.md.
    if (!link_.pidfd.valid() && !link_.channel.valid()) fences_.OnGone();
    return;
  }
  if (link_.state == State::kOpening && !link_.bye_seen) {
    return Down({Code::kUnavailable, "the peer closed its socket while the link was made; see its log"});
  }
  if (link_.bye_seen)
    return Down(Error(Code::kUnavailable, "the peer closed the link (", link_.PeerName(), "); see its log"));
  if (!link_.pidfd.valid()) {
    if (link_.sender) fences_.OnGone();
    return Down({fences_.gone() ? Code::kPeerDead : Code::kUnavailable,
                 StrCat("the peer's socket was closed (", link_.PeerName(), "); see its log")});
  }
  if (HasExited(link_.pidfd)) return OnProcess();
  link_.state = State::kHungUp;
  deadline_ = Clock::now() + kGrace;
}

void Link::Down(const Status& status) {
  const std::string peer = link_.PeerName();
  const bool met = link_.pid > 0 || link_.sender;  // Before, its pid is not known, wherever it runs.
  Status reason = BrokeProtocol(met ? StrCat("the peer (", peer, ")") : std::string("the peer"), status);
  if (met && reason.message().find(peer) == std::string::npos)
    reason = Error(reason.code(), reason.message(), " (the peer is ", peer, ")");
  const bool was_ready = link_.state == State::kReady || link_.state == State::kHungUp;
  // What the peer had put into our inbox before it went is complete: its bytes landed before.
  if (was_ready && reason.code() != Code::kProtocol) link_.receiver->DrainAll();
  link_.inbox.CloseSources();  // Before anything completes: from then on sources may change.
  link_.sources.Close();
  link_.state = State::kDown;
  if (link_.sender)
    link_.sender->queue().Fail(reason.code() == Code::kPeerDead ? Code::kPeerDead : Code::kUnavailable);
  if (was_ready) link_.context.events.Push(LaneDown{.link = link_.id, .lane = 0, .reason = reason});
  link_.context.events.Push(LinkDown{.link = link_.id, .reason = reason});
  if (link_.channel.valid() && !link_.bye_seen) (void)link_.channel.Send(Encode(Bye{}));
  link_.context.peer_regions.ForEach(link_.id, [](PeerRegion& region) {
    region.state = PeerRegion::State::kFailed;
    region.failure = Code::kUnavailable;
  });
}

void Link::Close() {
  link_.inbox.CloseSources();
  link_.sources.Close();
  if (link_.sender) link_.sender->queue().Fail(Code::kCancelled);
  if (link_.channel.valid() && link_.state != State::kDown) (void)link_.channel.Send(Encode(Bye{}));
  link_.context.peer_regions.EraseLink(link_.id);
  regions_.Close();
  link_.state = State::kClosing;
  fences_.Close();
}

}  // namespace weightcast::transport::shm
