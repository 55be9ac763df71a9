#include "stream/handshakes.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "base/socket.h"
#include "base/strings.h"
#include "stream/proof.h"

namespace weightcast::stream {
namespace {

/// Of one under way, before a newcomer takes its place: in any case, and while somebody has proven himself
/// within kLeastTime.
constexpr auto kLeastTime = std::chrono::milliseconds(100);
constexpr auto kTimeOfWorkers = std::chrono::seconds(1);

void SendAlert(int fd, Alert alert) {
  const std::string record = AlertRecord(alert);
  [[maybe_unused]] const ssize_t ignored =
      ::send(fd, record.data(), record.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool HasHungUp(int fd) {
  pollfd one{.fd = fd, .events = POLLRDHUP, .revents = 0};
  return ::poll(&one, 1, 0) == 1;
}

void LogRefused(const std::string& peer, std::string_view why) {
  WC_LOG_LIMITED(kWarning, "refused a process at ", peer, ": ", why);
}

}  // namespace

std::string PeerTextOf(int fd) {
  const auto peer = PeerAddressOf(fd);
  return peer.ok() ? peer->ToString() : "an unknown address";
}

Result<std::unique_ptr<Handshakes>> Handshakes::Create(Options options) {
  WC_ASSIGN_OR_RETURN(TlsContext context,
                      TlsContext::Make(TlsContext::Side::kServer, ProtocolName(options.keys->version())));
  auto made = std::unique_ptr<Handshakes>(new Handshakes(std::move(options), std::move(context)));
  WC_ASSIGN_OR_RETURN(made->poller_, Poller::Create());
  return made;
}

void Handshakes::Add(UniqueFd fd) {
  {
    const std::lock_guard lock(mutex_);
    while (waiting_.size() >= most_waiting_) waiting_.pop_front();
    waiting_.push_back(std::move(fd));
  }
  options_.wake();
}

void Handshakes::LimitWaiting(size_t most) {
  const std::lock_guard lock(mutex_);
  most_waiting_ = most;
}

TimePoint Handshakes::room_at() const {
  if (under_way_.size() < options_.most) return {};
  const TimePoint began = under_way_.begin()->second.began;
  return std::max(began + kLeastTime, std::min(began + kTimeOfWorkers, last_proven_ + kLeastTime));
}

UniqueFd Handshakes::TakeWaiting() {
  const std::lock_guard lock(mutex_);
  while (!waiting_.empty() && HasHungUp(waiting_.back().get())) waiting_.pop_back();
  held_back_ = !waiting_.empty() && room_at() > Clock::now();
  if (waiting_.empty() || held_back_) return UniqueFd();
  UniqueFd fd = std::move(waiting_.back());
  waiting_.pop_back();
  return fd;
}

void Handshakes::Step() {
  EndExpired();
  // Those that answer come first: they may be proven by this step.
  std::array<epoll_event, kAtOnce> events{};
  const auto count = static_cast<size_t>(poller_.Wait(events, Duration::zero()));
  for (size_t i = 0; i < count; ++i) Continue(events[i].data.u64);
  busy_ = true;
  for (size_t i = count; i < kAtOnce && busy_; ++i) {
    UniqueFd fd = TakeWaiting();
    busy_ = fd.valid();
    if (busy_) Begin(std::move(fd));
  }
}

TimePoint Handshakes::expiry() const {
  return under_way_.empty() ? kNever : under_way_.begin()->second.began + options_.patience;
}

TimePoint Handshakes::deadline() const { return held_back_ ? std::min(expiry(), room_at()) : expiry(); }

void Handshakes::Begin(UniqueFd fd) {
  const std::string peer = PeerTextOf(fd.get());
  if (const Status status = BeginTls(fd, peer); !status.ok()) LogRefused(peer, status.message());
}

/// Reads the ClientHello; only for a key that is known there is a session.
Status Handshakes::BeginTls(UniqueFd& fd, const std::string& peer) {
  std::array<char, kMostHelloBytes + 1> bytes;
  const ssize_t got = ::recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got <= 0) return {Code::kUnavailable, "it closed the connection before its first message; see its log"};
  const std::string_view sent(bytes.data(), static_cast<size_t>(got));
  WC_ASSIGN_OR_RETURN(const auto hello, ReadClientHello(sent));
  if (!hello)
    return {Code::kProtocol,
            "it is not a weightcast process: its ClientHello (first TLS message) is incomplete; find out "
            "what connects from there"};
  const auto judgement = options_.keys->Judge(*hello);
  if (!judgement.identity) {
    SendAlert(fd.get(), judgement.alert);
    return {Code::kPermission, judgement.reason};
  }
  WC_ASSIGN_OR_RETURN(
      TlsSession session,
      TlsSession::Begin(context_, {hello->identity, options_.keys->KeyOf(*judgement.identity)}));
  UnderWay one;
  one.connection = std::make_unique<Connection>(std::move(fd), std::move(session), options_.most_queued);
  one.member = judgement.identity->member;
  one.peer = peer;
  one.began = Clock::now();
  one.connection->Take(sent);
  if (!one.connection->end().ok())
    return Error(Code::kPermission, "it does not have the key of ", MemberText(one.member),
                 "; give that process a token of this job");
  WC_RETURN_IF_ERROR(one.connection->Flush());
  const uint64_t id = next_id_++;
  WC_RETURN_IF_ERROR(poller_.Add(one.connection->fd(), EPOLLIN, id));
  if (under_way_.size() >= options_.most) End(under_way_.begin()->first);
  under_way_.emplace(id, std::move(one));
  return Status::Ok();
}

void Handshakes::Continue(uint64_t id) {
  const auto at = under_way_.find(id);
  if (at == under_way_.end()) return;  // Ended earlier in this step.
  if (!Advance(at->second)) return End(id);
  if (!at->second.connection->tls().established()) return;
  last_proven_ = Clock::now();
  UnderWay one = std::move(at->second);
  poller_.Remove(one.connection->fd());
  End(id);
  Prove(std::move(one));
}

bool Handshakes::Advance(UnderWay& one) {
  one.connection->Read();
  const bool established = one.connection->tls().established();
  Status why = one.connection->end();
  if (!established && why.ok()) why = one.connection->Flush();
  if (established || why.ok()) return true;
  LogRefused(one.peer, StrCat("its handshake as ", MemberText(one.member), " broke off: ", why.message()));
  return false;
}

void Handshakes::Prove(UnderWay one) {
  const auto proof = ProveController(one.connection->tls(), options_.keys->controller());
  const Status status = proof.ok() ? one.connection->Queue(FrameKind::kProof, *proof) : proof.status();
  if (!status.ok()) return LogRefused(one.peer, status.message());
  options_.on_proven({.connection = std::move(one.connection),
                      .member = std::move(one.member),
                      .peer = std::move(one.peer)});
}

void Handshakes::End(uint64_t id) {
  const auto at = under_way_.find(id);
  if (at->second.connection != nullptr) poller_.Remove(at->second.connection->fd());
  under_way_.erase(at);
}

void Handshakes::EndExpired() {
  const TimePoint now = Clock::now();
  while (expiry() <= now) End(under_way_.begin()->first);
}

}  // namespace weightcast::stream
