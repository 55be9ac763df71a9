#include <unistd.h>

#include <cstdlib>

#include "base/log.h"
#include "base/process.h"
#include "base/random.h"
#include "base/socket.h"
#include "base/strings.h"
#include "transport/shm/link.h"

/// From the blobs to LinkReady. Both sides do the same once they are connected: greet with the
/// descriptors of what they share, try the peer's memory, look whether the peer's trial arrived.
namespace weightcast::transport::shm {
namespace {

constexpr Duration kRetry = std::chrono::milliseconds(1);
constexpr int kMessagesAtOnce = 64;

}  // namespace

void Link::Connect(const Invitation& answer) {
  peer_cookie_ = answer.cookie;
  peer_listener_ = answer.name;
  TryConnect(Clock::now());
}

void Link::TryConnect(TimePoint now) {
  auto channel = Channel::Connect(peer_listener_);
  if (!channel.ok() && channel.status().code() == Code::kExhausted) {
    retry_at_ = now + kRetry;
    return;
  }
  peer_listener_.clear();
  Status status = channel.status();
  if (status.ok()) status = Watch(std::move(channel).value());
  if (status.ok()) status = Greet();
  if (!status.ok()) Down(status);
}

void Link::Adopt(Channel channel, const Channel::Incoming& hello) {
  Status status = Watch(std::move(channel));
  if (status.ok()) status = Greet();
  if (status.ok()) status = OnHello(hello);
  if (!status.ok()) Down(status);
}

Status Link::Watch(Channel channel) {
  channel_ = std::move(channel);
  WC_RETURN_IF_ERROR(IdentifyProcess());
  return context_->poller.Add(channel_.fd(), EPOLLIN,
                              PollKey(PollKind::kChannel, static_cast<uint32_t>(id_)));
}

void Link::UpdateInterest() {
  // Who floods us with requests and does not read the answers is not read either.
  const uint32_t in = channel_.congested() && !over() ? 0U : uint32_t{EPOLLIN};
  const uint32_t out = channel_.waiting() ? uint32_t{EPOLLOUT} : 0U;
  (void)context_->poller.Modify(channel_.fd(), in | out,
                                PollKey(PollKind::kChannel, static_cast<uint32_t>(id_)));
}

Status Link::Greet() {
  const Hello hello{.cookie = peer_cookie_,
                    .incarnation = context_->self,
                    .map_nonce = RandomId(),
                    .copy_address = reinterpret_cast<uint64_t>(cell_.get()),
                    .copy_nonce = RandomId()};
  inbox_.shared().trial_nonce.store(hello.map_nonce, std::memory_order_seq_cst);
  cell_->nonce.store(hello.copy_nonce, std::memory_order_seq_cst);
  const std::array fds = {inbox_.fd(), context_->fence_pages.fd.get()};
  return channel_.Send(Encode(hello), fds);
}

Status Link::OnMessage(Channel::Incoming& message) {
  WC_ASSIGN_OR_RETURN(const MessageKind kind, KindOf(message.bytes));
  const bool ready = state_ == State::kReady;
  if (kind == MessageKind::kBell) return Status::Ok();
  if (kind == MessageKind::kBye) {
    bye_seen_ = true;
    return Status::Ok();
  }
  if (kind == MessageKind::kHello && !sender_) return OnHello(message);
  if (kind == MessageKind::kTrial && sender_ && !verdict_sent_) {
    WC_ASSIGN_OR_RETURN(const Trial trial, DecodeTrial(message.bytes));
    return OnTrial(trial);
  }
  if (kind == MessageKind::kVerdict && sender_ && !verdict_seen_) {
    WC_ASSIGN_OR_RETURN(const Verdict verdict, DecodeVerdict(message.bytes));
    return OnVerdict(verdict);
  }
  if (kind == MessageKind::kWantRegion && ready) {
    WC_ASSIGN_OR_RETURN(const WantRegion request, DecodeWantRegion(message.bytes));
    return OnWantRegion(request);
  }
  if (kind == MessageKind::kRegion && ready) {
    WC_ASSIGN_OR_RETURN(const RegionReply reply, DecodeRegionReply(message.bytes));
    return OnRegion(reply, message.fds);
  }
  if (kind == MessageKind::kRing && ready) {
    WC_ASSIGN_OR_RETURN(const RingReply reply, DecodeRingReply(message.bytes));
    return OnRing(reply, message.fds);
  }
  if ((kind == MessageKind::kWantStage || kind == MessageKind::kStage) && ready) {
    return OnStageMessage(kind, message);
  }
  if (kind >= MessageKind::kWantSource && ready) return OnSourceMessage(kind, std::move(message));
  return {Code::kProtocol,
          "it sent a message of the wrong kind for the state of its link over shared memory"};
}

void Link::OnChannel() {
  if (!channel_.valid()) return;
  // What cannot be sent does not keep us from what the peer has sent, its hang-up above all.
  const Status sent = channel_.Flush();
  Status status;
  for (int i = 0; i < kMessagesAtOnce && status.ok(); ++i) {
    if (channel_.congested() && sent.ok() && !over()) break;
    auto message = channel_.Receive();
    if (!message.ok()) {
      if (message.status().code() == Code::kUnavailable) {
        CloseChannel();
        return HangUp();
      }
      status = message.status();
      break;
    }
    if (!*message) {
      if (!over()) status = sent;
      break;
    }
    if (over()) {  // Only the hang-up is still of interest, and whether our device memory is mapped there.
      const auto dropped = DecodeDropped((*message)->bytes);
      if (dropped.ok()) status = offers_.OnDropped(*dropped);
      continue;
    }
    status = OnMessage(**message);
    if (bye_seen_) return HangUp();
  }
  if (status.ok()) return UpdateInterest();
  if (!over()) Down(status);
  if (channel_needed() && status.code() != Code::kUnavailable) return UpdateInterest();
  // Where no descriptor stands for the process, its hang-up is the only proof of its end.
  if (!pidfd_.valid() && status.code() == Code::kUnavailable) return UpdateInterest();
  CloseChannel();
}

Status Link::OnHello(const Channel::Incoming& message) {
  WC_ASSIGN_OR_RETURN(const Hello hello, DecodeHello(message.bytes));
  if (hello.cookie != cookie_ || hello.incarnation != peer_ || message.fds.size() != 2) {
    return {Code::kProtocol, "it sent a hello over shared memory that is not of this link"};
  }
  WC_ASSIGN_OR_RETURN(auto inbox, MapPeer(message.fds[0].get(), 0, sizeof(Inbox), /*writable=*/true));
  WC_ASSIGN_OR_RETURN(auto fence, MapPeer(message.fds[1].get(), 0, sizeof(FencePage), /*writable=*/false));
  outbox_.emplace(std::move(inbox), std::move(fence), channel_);
  if (outbox_->shared().trial_nonce.load(std::memory_order_seq_cst) != hello.map_nonce) {
    return {Code::kProtocol, "the memory that it shares has other contents than it announced"};
  }
  const PeerLife life(pidfd_, channel_);
  Staging& staging = staging_.emplace(*context_, inbox_, *outbox_, engines_, channel_);
  sender_.emplace(id_, *context_, *outbox_, paths_,
                  SenderDevices{engines_, offers_, sources_, life, staging});
  receiver_.emplace(id_, PullerParts{*context_, inbox_, *outbox_, engines_, sources_, life, staging},
                    *sender_);

  Trial trial{.map_echo = RandomId(), .copy_echo = RandomId()};
  outbox_->shared().trial_echo.store(trial.map_echo, std::memory_order_seq_cst);
  if (paths_.refusal.empty()) {
    paths_.refusal = paths_.copy.Try(hello.copy_address, hello.copy_nonce, trial.copy_echo);
  }
  if (!paths_.refusal.empty()) trial.copy_echo = 0;
  return channel_.Send(Encode(trial));
}

Status Link::IdentifyProcess() {
  WC_ASSIGN_OR_RETURN(const PeerCredentials credentials, CredentialsOf(channel_.fd()));
  if (credentials.uid != geteuid()) {
    return {Code::kUnavailable,
            StrCat("the peer runs as another user (", credentials.uid,
                   "): shared memory is only for processes of one user; start both as the same user")};
  }
  pid_ = credentials.pid;
  offers_.SetSameProcess(pid_ == getpid());
  if (pid_ == 0) {
    paths_.refusal = "the peer is in another pid namespace";
    return Status::Ok();
  }
  // The trial's answer comes from a process that lives after this: so the descriptor is that process'.
  auto process = OpenPidFd(pid_);
  if (!process.ok()) {
    paths_.refusal = process.status().message();
    return Status::Ok();
  }
  pidfd_ = std::move(process).value();
  paths_.copy = CrossCopy(pid_, &pidfd_, &channel_);
  if (!context_->cross_copy) {
    paths_.refusal = "switched off";
  } else {
    tracer_ = context_->ptracer.Allow(context_->ptracer_policy, pid_);
  }
  return context_->poller.Add(pidfd_.get(), EPOLLIN, PollKey(PollKind::kProcess, static_cast<uint32_t>(id_)));
}

Status Link::OnTrial(const Trial& trial) {
  const Verdict verdict{
      .map_seen =
          trial.map_echo != 0 && inbox_.shared().trial_echo.load(std::memory_order_seq_cst) == trial.map_echo,
      .copy_seen = trial.copy_echo != 0 && cell_->echo.load(std::memory_order_seq_cst) == trial.copy_echo};
  if (!verdict.copy_seen) tracer_.Reset();  // Others may need it.
  verdict_sent_ = true;
  WC_RETURN_IF_ERROR(channel_.Send(Encode(verdict)));
  if (verdict_seen_) BecomeReady();
  return Status::Ok();
}

Status Link::OnVerdict(const Verdict& verdict) {
  if (!verdict.map_seen)
    return {Code::kUnavailable,
            "the peer does not see what is written to shared memory; it may be in another sandbox: run "
            "both in one, or leave shm out by the setting transport"};
  verdict_seen_ = true;
  if (paths_.refusal.empty() && !verdict.copy_seen) {
    paths_.refusal = "what was copied did not reach the peer";
  }
  paths_.copy_writes = paths_.copy_reads = paths_.refusal.empty();
  if (verdict_sent_) BecomeReady();
  return Status::Ok();
}

void Link::BecomeReady() {
  state_ = State::kReady;
  inbox_.CloseFd();
  inbox_.Open();
  inbox_.OpenSources();
  context_->events.Push(LinkReady{.link = id_, .lanes = 1});
  context_->peer_regions.ForEach(id_, [this](PeerRegion& region) { Import(region); });
}

}  // namespace weightcast::transport::shm
