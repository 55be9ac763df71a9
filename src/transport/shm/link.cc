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
/// A copy engine may go on after its process has ended: the driver ends the channels of the dead within
/// milliseconds, and nothing tells when.
constexpr Duration kLatePushes = std::chrono::seconds(2);
/// Run inside one Post.
constexpr uint32_t kInlineOperations = 64;

}  // namespace

Result<std::unique_ptr<Link>> Link::Create(Context& context, LinkId id, Incarnation peer,
                                           TimePoint deadline) {
  WC_ASSIGN_OR_RETURN(auto inbox, OwnInbox::Create());
  return std::unique_ptr<Link>(new Link(context, id, peer, deadline, std::move(inbox)));
}

Link::Link(Context& context, LinkId id, Incarnation peer, TimePoint deadline, OwnInbox inbox)
    : context_(&context),
      id_(id),
      peer_(peer),
      deadline_(deadline),
      inbox_(std::move(inbox)),
      engines_(context.copies),
      offers_(context, channel_),
      sources_(context, channel_, engines_),
      cookie_(NewCookie()),
      cell_(std::make_unique<TrialCell>()) {}

Link::~Link() {
  if (channel_.valid() && sources_.empty()) (void)channel_.Send(Encode(Dropped{.region = {}, .all = true}));
  if (channel_.valid()) context_->poller.Remove(channel_.fd());
  channel_.Close();
  if (pidfd_.valid()) context_->poller.Remove(pidfd_.get());
}

std::string Link::PeerName() const {
  return pid_ > 0 ? StrCat("pid ", pid_) : std::string("a process of another pid namespace");
}

std::string Link::Describe() const {
  if (state_ == State::kOpening) return "shm: connecting";
  if (!sender_) return "shm: not connected";
  const std::string other = paths_.refusal.empty()
                                ? "cross-process copy"
                                : StrCat("ring (cross-process copy refused: ", paths_.refusal, ")");
  return StrCat("shm: mapped memory and ", other,
                staging_->in_use() ? "; device memory staged through host memory, " : ", ", PeerName());
}

void Link::Gone() {
  if (std::exchange(gone_, true)) return;
  offers_.Clear();
  // The end of a process does not end what its devices were copying.
  if (!inbox_.DeviceFence().Over(inbox_.shared().device_ended)) pushes_until_ = Clock::now() + kLatePushes;
}

void Link::OnProcess() {
  Gone();
  context_->poller.Remove(pidfd_.get());
  if (state_ == State::kDown || state_ == State::kClosing) return;
  Down({Code::kPeerDead, StrCat("the peer process has ended (", PeerName(), "); see its log")});
}

void Link::OnTime(TimePoint now) {
  if (pushes_until_ && now >= *pushes_until_) pushes_until_.reset();
  if (channel_.valid() && channel_.waiting() && now >= flush_at_) {
    flush_at_ = now + kFlush;
    OnChannel();
  }
  if (state_ == State::kHungUp && now >= deadline_) {
    return Down({Code::kUnavailable, StrCat("the peer's socket was closed (", PeerName(), "); see its log")});
  }
  if (state_ != State::kOpening) return;
  if (now >= deadline_)
    return Down(
        {Code::kTimedOut,
         StrCat("the peer did not answer over shared memory within half of connect_timeout", kSeePeer)});
  if (!peer_listener_.empty() && now >= retry_at_) TryConnect(now);
}

std::optional<TimePoint> Link::due() const {
  std::optional<TimePoint> due;
  if (channel_.valid() && channel_.waiting()) due = flush_at_;
  const auto earlier = [&](TimePoint when) { due = due ? std::min(*due, when) : when; };
  if (pushes_until_) earlier(*pushes_until_);
  if (state_ == State::kHungUp || state_ == State::kOpening) earlier(deadline_);
  if (state_ == State::kOpening && !peer_listener_.empty()) earlier(retry_at_);
  return due;
}

size_t Link::Post(std::span<const Op> ops, Budget& budget) {
  if (state_ != State::kReady) return 0;
  const size_t taken = sender_->Take(ops);
  budget.operations = kInlineOperations;
  sender_->Run(budget);
  return taken;
}

bool Link::Turn(Budget& budget) {
  bool any = StepDevices();
  if (state_ != State::kReady && state_ != State::kHungUp) return any;
  Budget incoming{.bytes = kPieceBytes};
  Status status = receiver_->Drain(incoming, any);
  if (state_ == State::kReady && status.ok()) {
    any |= receiver_->RunPulls();
    any |= receiver_->RunStaged(incoming);
    any |= sender_->Run(budget);
    any |= receiver_->Serve(budget);
    if (status.ok() && paths_.ring_wanted && !ring_sent_) {
      WarnOfRing();
      status = SendRing();
    }
  }
  if (status.ok() && (outbox_->broken() || staging_->out.broken()))
    status = {Code::kProtocol, "its counters in shared memory count more than was sent"};
  if (status.ok()) return any;
  Down(status);
  return true;
}

void Link::Arm(bool fences) {
  armed_ = true;
  const bool space = state_ == State::kReady && (!sender_->idle() || receiver_->owes());
  inbox_.shared().wake.store(kWakeRecords | (space ? kWakeSpace : 0) | (fences ? kWakeFence : 0),
                             std::memory_order_seq_cst);
}

void Link::Disarm() {
  if (std::exchange(armed_, false)) inbox_.shared().wake.store(0, std::memory_order_seq_cst);
}

Status Link::OpenGrant(const GrantName& grant, GrantReach ranges) {
  if (state_ == State::kDown || state_ == State::kClosing) {
    return {Code::kUnavailable, StrCat("the link to this peer (", PeerName(), ") is down; connect again")};
  }
  return inbox_.OpenGrant(grant, std::move(ranges));
}

void Link::Revoke(const GrantName& grant) {
  const bool open = inbox_.CloseGrant(grant);
  revokes_.push_back({.grant = grant, .fence = MakeFence(), .frees_slot = open});
  SettleRevokes();
}

bool Link::SettleRevokes() {
  return std::erase_if(revokes_, [this](const PendingRevoke& revoke) {
           if (!Over(revoke.fence)) return false;
           if (revoke.frees_slot) inbox_.FreeSlot(revoke.grant.slot);
           context_->events.Push(Revoked{.link = id_, .grant = revoke.grant});
           return true;
         }) > 0;
}

void Link::HangUp() {
  if (!bye_seen_ || !channel_needed()) CloseChannel();
  if (state_ == State::kDown || state_ == State::kClosing) {
    // Without a descriptor for the process its hang-up must do: see docs/wire.md.
    if (!pidfd_.valid() && !channel_.valid()) Gone();
    return;
  }
  if (state_ == State::kOpening && !bye_seen_) {
    return Down({Code::kUnavailable, "the peer closed its socket while the link was made; see its log"});
  }
  if (bye_seen_)
    return Down({Code::kUnavailable, StrCat("the peer closed the link (", PeerName(), "); see its log")});
  if (!pidfd_.valid()) {
    if (sender_) Gone();
    return Down({gone_ ? Code::kPeerDead : Code::kUnavailable,
                 StrCat("the peer's socket was closed (", PeerName(), "); see its log")});
  }
  if (HasExited(pidfd_)) return OnProcess();
  state_ = State::kHungUp;
  deadline_ = Clock::now() + kGrace;
}

void Link::CloseChannel() {
  if (!channel_.valid()) return;
  context_->poller.Remove(channel_.fd());
  channel_.Close();
}

void Link::Down(const Status& status) {
  const std::string peer = PeerName();
  Status reason = BrokeProtocol(StrCat("the peer (", peer, ")"), status);
  if (reason.message().find(peer) == std::string::npos)
    reason = {reason.code(), StrCat(reason.message(), " (the peer is ", peer, ")")};
  const bool was_ready = state_ == State::kReady || state_ == State::kHungUp;
  // What the peer had put into our inbox before it went is complete: its bytes landed before.
  if (was_ready && reason.code() != Code::kProtocol) receiver_->DrainAll();
  inbox_.CloseSources();  // Before anything completes: from then on sources may change.
  sources_.Close();
  state_ = State::kDown;
  if (sender_) sender_->Fail(reason.code() == Code::kPeerDead ? Code::kPeerDead : Code::kUnavailable);
  if (was_ready) context_->events.Push(LaneDown{.link = id_, .lane = 0, .reason = reason});
  context_->events.Push(LinkDown{.link = id_, .reason = reason});
  if (channel_.valid() && !bye_seen_) (void)channel_.Send(Encode(Bye{}));
  context_->peer_regions.ForEach(id_, [](PeerRegion& region) {
    region.state = PeerRegion::State::kFailed;
    region.failure = Code::kUnavailable;
  });
}

void Link::Close() {
  inbox_.CloseSources();
  sources_.Close();
  if (sender_) sender_->Fail(Code::kCancelled);
  if (channel_.valid() && state_ != State::kDown) (void)channel_.Send(Encode(Bye{}));
  context_->peer_regions.EraseLink(id_);
  mappings_.clear();
  inbox_.CloseAll();
  state_ = State::kClosing;
  closing_.emplace(MakeFence());
  closing_->pushes = inbox_.DeviceFence();
}

}  // namespace weightcast::transport::shm
