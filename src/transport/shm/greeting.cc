#include "transport/shm/greeting.h"

#include <unistd.h>

#include <cstdlib>

#include "base/log.h"
#include "base/process.h"
#include "base/random.h"
#include "base/socket.h"
#include "base/strings.h"

namespace weightcast::transport::shm {
namespace {

constexpr Duration kRetry = std::chrono::milliseconds(1);

}  // namespace

Status Greeting::Connect(const Invitation& answer) {
  peer_cookie_ = answer.cookie;
  peer_listener_ = answer.name;
  return Step(Clock::now());
}

Status Greeting::Step(TimePoint now) {
  if (peer_listener_.empty() || now < retry_at_) return Status::Ok();
  auto channel = Channel::Connect(peer_listener_);
  if (!channel.ok() && channel.status().code() == Code::kExhausted) {
    retry_at_ = now + kRetry;
    return Status::Ok();
  }
  peer_listener_.clear();
  WC_RETURN_IF_ERROR(channel.status());
  WC_RETURN_IF_ERROR(Watch(std::move(channel).value()));
  return Greet();
}

Status Greeting::Adopt(Channel channel, const Channel::Incoming& hello) {
  WC_RETURN_IF_ERROR(Watch(std::move(channel)));
  WC_RETURN_IF_ERROR(Greet());
  return OnHello(hello);
}

bool Greeting::Awaits(MessageKind kind) const {
  if (kind == MessageKind::kHello) return !link_.sender;
  return link_.sender && ((kind == MessageKind::kTrial && !verdict_sent_) ||
                          (kind == MessageKind::kVerdict && !verdict_seen_));
}

Status Greeting::OnMessage(MessageKind kind, const Channel::Incoming& message) {
  if (kind == MessageKind::kHello) return OnHello(message);
  if (kind == MessageKind::kTrial)
    return DecodeFor<Trial>(message.bytes, [this](const Trial& trial) { return OnTrial(trial); });
  return DecodeFor<Verdict>(message.bytes, [this](const Verdict& verdict) { return OnVerdict(verdict); });
}

Status Greeting::Watch(Channel channel) {
  link_.channel = std::move(channel);
  WC_RETURN_IF_ERROR(IdentifyProcess());
  return link_.context.poller.Add(link_.channel.fd(), EPOLLIN, link_.KeyOf(PollKind::kChannel));
}

Status Greeting::Greet() {
  const Hello hello{.cookie = peer_cookie_,
                    .incarnation = link_.context.self,
                    .map_nonce = RandomId(),
                    .copy_address = reinterpret_cast<uint64_t>(cell_.get()),
                    .copy_nonce = RandomId()};
  link_.inbox.shared().trial_nonce.store(hello.map_nonce, std::memory_order_seq_cst);
  cell_->nonce.store(hello.copy_nonce, std::memory_order_seq_cst);
  const std::array fds = {link_.inbox.fd(), link_.context.fence_pages.fd.get()};
  return link_.channel.Send(Encode(hello), fds);
}

Status Greeting::OnHello(const Channel::Incoming& message) {
  WC_ASSIGN_OR_RETURN(const Hello hello, Decode<Hello>(message.bytes));
  if (hello.cookie != cookie_ || hello.incarnation != link_.peer || message.fds.size() != 2) {
    return {Code::kProtocol, "it sent a hello over shared memory that is not of this link"};
  }
  WC_ASSIGN_OR_RETURN(auto inbox, MapPeer(message.fds[0].get(), 0, sizeof(Inbox), /*writable=*/true));
  WC_ASSIGN_OR_RETURN(auto fence, MapPeer(message.fds[1].get(), 0, sizeof(FencePage), /*writable=*/false));
  link_.outbox.emplace(std::move(inbox), std::move(fence), link_.channel);
  if (link_.outbox->shared().trial_nonce.load(std::memory_order_seq_cst) != hello.map_nonce) {
    return {Code::kProtocol, "the memory that it shares has other contents than it announced"};
  }
  const PeerLife life(link_.pidfd, link_.channel);
  Staging& staging =
      link_.staging.emplace(link_.context, link_.inbox, *link_.outbox, link_.engines, link_.channel);
  link_.sender.emplace(link_.id, link_.context, *link_.outbox, link_.paths,
                       SenderDevices{link_.engines, link_.offers, link_.sources, life, staging});
  link_.receiver.emplace(link_.id,
                         PullerParts{link_.context, link_.inbox, *link_.outbox, link_.engines, link_.sources,
                                     life, link_.paths, staging},
                         *link_.sender);

  Trial trial{.map_echo = RandomId(), .copy_echo = RandomId()};
  link_.outbox->shared().trial_echo.store(trial.map_echo, std::memory_order_seq_cst);
  if (link_.paths.refusal.empty()) {
    link_.paths.refusal = link_.paths.copy.Try(hello.copy_address, hello.copy_nonce, trial.copy_echo);
  }
  if (!link_.paths.refusal.empty()) trial.copy_echo = 0;
  return link_.channel.Send(Encode(trial));
}

Status Greeting::IdentifyProcess() {
  WC_ASSIGN_OR_RETURN(const PeerCredentials credentials, CredentialsOf(link_.channel.fd()));
  if (credentials.uid != geteuid()) {
    return Error(Code::kUnavailable, "the peer runs as user ", credentials.uid, ", and this process as user ",
                 geteuid(), "; shared memory is only for processes of one user: start both as the same user");
  }
  link_.pid = credentials.pid;
  link_.offers.SetSameProcess(link_.pid == getpid());
  if (link_.pid == 0) {
    link_.paths.refusal = "the peer is in another pid namespace";
    return Status::Ok();
  }
  // The trial's answer comes from a process that runs after this: so the descriptor is that process'.
  auto process = OpenPidFd(link_.pid);
  if (!process.ok()) {
    link_.paths.refusal = process.status().message();
    return Status::Ok();
  }
  link_.pidfd = std::move(process).value();
  link_.paths.copy = CrossCopy(link_.pid, &link_.pidfd, &link_.channel);
  if (link_.context.cross_copies == CrossCopies::kOff) {
    link_.paths.refusal = "switched off";
  } else {
    link_.tracer = link_.context.ptracer.Allow(link_.context.ptracer_policy, link_.pid);
  }
  return link_.context.poller.Add(link_.pidfd.get(), EPOLLIN, link_.KeyOf(PollKind::kProcess));
}

Status Greeting::OnTrial(const Trial& trial) {
  const Verdict verdict{
      .map_seen = trial.map_echo != 0 &&
                  link_.inbox.shared().trial_echo.load(std::memory_order_seq_cst) == trial.map_echo,
      .copy_seen = trial.copy_echo != 0 && cell_->echo.load(std::memory_order_seq_cst) == trial.copy_echo};
  if (!verdict.copy_seen) link_.tracer.Reset();  // Others may need it.
  link_.paths.peer_reads = verdict.copy_seen;
  verdict_sent_ = true;
  return link_.channel.Send(Encode(verdict));
}

Status Greeting::OnVerdict(const Verdict& verdict) {
  if (!verdict.map_seen)
    return {Code::kUnavailable,
            "the peer does not see what is written to shared memory; it may be in another sandbox: run "
            "both in one, or leave shm out in setting transport"};
  verdict_seen_ = true;
  if (link_.paths.refusal.empty() && !verdict.copy_seen) {
    link_.paths.refusal = "what was copied did not reach the peer";
  }
  link_.paths.copy_writes = link_.paths.copy_reads = link_.paths.refusal.empty();
  return Status::Ok();
}

}  // namespace weightcast::transport::shm
