#include "endpoint/handshakes.h"

#include <algorithm>

#include "base/log.h"
#include "base/random.h"
#include "base/strings.h"

namespace weightcast::endpoint {
namespace {

using transport::Role;

constexpr const char* kSuperseded =
    "superseded by another connection between the two endpoints; use that one";

std::string RunAndNumber(const SocketAddress& address) {
  std::string text = address.ToString();
  constexpr std::string_view kMapped = "[::ffff:";  // An IPv4 peer at an IPv6 socket.
  if (text.starts_with(kMapped) && text.find('.') != std::string::npos) {
    text.erase(0, kMapped.size());
    text.erase(text.find(']'), 1);
  }
  return text;
}

}  // namespace

void Handshakes::Stop() {
  connector_.Stop();
  while (!attempts_.empty()) Erase(attempts_.begin()->second, /*linger=*/false);
}

// --- Attempts ----------------------------------------------------------------------------------

void Handshakes::Accept(UniqueFd fd) {
  auto address = PeerAddressOf(fd.get());
  if (!address.ok()) return;  // Gone already.
  if (half_open_.full()) MakeRoom(StrCat("dropped, as ", HalfOpen::Most(), " handshakes are unfinished"));
  TuneTcp(fd.get(), context_.options.settings.lease);
  Attempt& attempt = NewAttempt(Role::kResponder, std::move(fd), *address, nullptr);
  half_open_.Add(attempt.id);
  if (Status status = Watch(attempt, EPOLLIN); !status.ok()) return Fail(attempt, status);
  // An honest hello is here already: its sender is not among those who go first.
  Read(attempt.id);
}

bool Handshakes::MakeRoom(std::string_view why) {
  if (half_open_.empty()) return false;
  Attempt& attempt = *Find(half_open_.Victim());
  LogRefusal(attempt,
             Error(Code::kExhausted, why,
                   "; raise the limit of open files (ulimit -n), or block it if it is not of your job"));
  Erase(attempt, /*linger=*/false);
  return true;
}

Status Handshakes::Start(const Call& call, const SocketAddress& address) {
  WC_ASSIGN_OR_RETURN(UniqueFd fd, StartConnect(address));
  TuneTcp(fd.get(), context_.options.settings.lease);
  Attempt& attempt = NewAttempt(Role::kInitiator, std::move(fd), address, call);
  attempt.stage = Attempt::Stage::kConnecting;
  ++call->running;
  Status status = Watch(attempt, EPOLLOUT);
  if (!status.ok()) Erase(attempt, /*linger=*/false);
  return status;
}

void Handshakes::Drop(const Call& call) {
  for (auto next = attempts_.begin(); next != attempts_.end();) {
    Attempt& attempt = (next++)->second;
    if (attempt.call == call) Erase(attempt, /*linger=*/false);
  }
}

bool Handshakes::BeingMade(Incarnation peer) {
  return connections_.Find(peer) != nullptr || FindIncoming(peer) != nullptr;
}

Handshakes::Attempt& Handshakes::NewAttempt(Role role, UniqueFd fd, const SocketAddress& address,
                                            const Call& call) {
  const uint64_t id = ++last_attempt_;
  Hello hello = hello_;
  FillRandom(hello.nonce);
  const FindKey find_key = call == nullptr || call->key.empty()
                               ? find_key_
                               : [key = call->key](const Identity&) { return Key{Key::Of::kPair, key}; };
  Handshaker machine(role, std::move(hello), find_key, call == nullptr ? Identity{} : call->expected);
  Attempt& attempt = attempts_
                         .emplace(id, Attempt{.id = id,
                                              .role = role,
                                              .channel = Channel(std::move(fd)),
                                              .machine = std::move(machine),
                                              .address = address,
                                              .call = call})
                         .first->second;
  const Duration most = context_.options.settings.connect_timeout;
  attempt.limit = context_.timers.Add(In(most), [this, id, most] {
    if (Attempt* late = Find(id)) {
      Fail(*late, Error(Code::kTimedOut, "no handshake within ", Seconds(most),
                        " s (setting connect_timeout); check ",
                        late->call != nullptr ? "that a weightcast endpoint runs at that address"
                                              : "what connects from there"));
    }
  });
  return attempt;
}

Status Handshakes::Watch(Attempt& attempt, uint32_t events) {
  WC_ASSIGN_OR_RETURN(attempt.key,
                      context_.sockets.Watch(attempt.channel.fd(), events,
                                             [this, id = attempt.id](uint32_t e) { OnSocket(id, e); }));
  return Status::Ok();
}

Handshakes::Attempt* Handshakes::Find(uint64_t id) {
  const auto found = attempts_.find(id);
  return found == attempts_.end() ? nullptr : &found->second;
}

void Handshakes::OnSocket(uint64_t id, uint32_t events) {
  Attempt* attempt = Find(id);
  if (attempt == nullptr) return;
  if (attempt->stage == Attempt::Stage::kConnecting) {
    Status status = ConnectOutcome(attempt->channel.fd(), attempt->address);
    if (!status.ok()) return Fail(*attempt, status);
    attempt->stage = Attempt::Stage::kTalking;
    context_.sockets.Change(attempt->key, EPOLLIN);
    return Send(*attempt, attempt->machine.Start());
  }
  if ((events & EPOLLOUT) != 0 && attempt->channel.Flush().ok() && !attempt->channel.waiting()) {
    context_.sockets.Change(attempt->key, EPOLLIN);
  }
  Read(id);
}

void Handshakes::Read(uint64_t id) {
  Attempt* attempt = Find(id);
  const Status received = attempt->channel.Receive().status();
  // Each message may end the attempt, or turn it into a connection, which goes on reading.
  while ((attempt = Find(id)) != nullptr) {
    auto message = attempt->channel.Next();
    if (!message.ok()) return Refuse(*attempt, message.status());
    if (!message->has_value()) break;
    for (const Message& answer : attempt->machine.OnMessage(**message)) Send(*attempt, answer);
    React(*attempt);
  }
  if (attempt == nullptr || received.ok()) return;
  if (attempt->call != nullptr && attempt->machine.state() != Handshaker::State::kFailed) {
    attempt->call->dropped = true;
  }
  Fail(*attempt, received);
}

void Handshakes::Send(Attempt& attempt, const Message& message) {
  // A broken socket shows when it is read next.
  if (!attempt.channel.Send(message).ok()) return;
  if (attempt.channel.waiting()) context_.sockets.Change(attempt.key, EPOLLIN | EPOLLOUT);
}

void Handshakes::React(Attempt& attempt) {
  switch (attempt.machine.state()) {
    case Handshaker::State::kGreeting:
      return;
    case Handshaker::State::kProving:
      half_open_.Heard(attempt.id);
      if (attempt.call != nullptr) attempt.call->target = attempt.machine.peer()->identity.incarnation;
      return;
    case Handshaker::State::kProven:
      half_open_.Remove(attempt.id);
      if (attempt.stage == Attempt::Stage::kTalking) return Decide(attempt);
      if (attempt.stage == Attempt::Stage::kAdmitted && attempt.role == Role::kInitiator &&
          attempt.machine.peer_accepted()) {
        Settle(attempt);
      }
      return;
    case Handshaker::State::kAccepted:
      return Establish(attempt);
    case Handshaker::State::kFailed:
      if (attempt.machine.superseded() && attempt.call != nullptr) {
        const Call call = attempt.call;
        Erase(attempt, /*linger=*/false);
        return connector_.WaitFor(call, call->target);
      }
      return Fail(attempt, attempt.machine.failure());
  }
}

/// The peer has proven itself. If both sides have begun, the lower incarnation's connection is kept.
void Handshakes::Decide(Attempt& attempt) {
  const Incarnation peer = attempt.machine.peer()->identity.incarnation;
  if (attempt.role == Role::kResponder) {
    if (const Call call = connector_.OwnCallTo(peer); call != nullptr) {
      const bool own_has_met = std::any_of(attempts_.begin(), attempts_.end(), [&](const auto& entry) {
        return entry.second.call == call && entry.second.machine.peer().has_value();
      });
      if (context_.options.self.incarnation < peer && own_has_met) {
        attempt.stage = Attempt::Stage::kHeld;
        return;
      }
      connector_.WaitFor(call, peer);
    }
  }
  AskAdmit(attempt);
}

void Handshakes::AskAdmit(Attempt& attempt) {
  attempt.stage = Attempt::Stage::kDeciding;
  const auto& admit = context_.options.admit;
  if (!admit) return OnAdmit(attempt.id, Status::Ok());
  context_.progress.Later([this, id = attempt.id, admit, identity = attempt.machine.peer()->identity] {
    SubmitNow(context_.progress, [this, id, status = admit(identity)] { OnAdmit(id, status); });
  });
}

void Handshakes::OnAdmit(uint64_t id, const Status& status) {
  Attempt* attempt = Find(id);
  if (attempt == nullptr || attempt->stage != Attempt::Stage::kDeciding) return;
  if (!status.ok()) return Refuse(*attempt, status);
  attempt->stage = Attempt::Stage::kAdmitted;
  if (attempt->role == Role::kResponder) Send(*attempt, attempt->machine.Accept());
  React(*attempt);
}

/// Our own attempt has succeeded on both sides; only we can still drop it.
void Handshakes::Settle(Attempt& attempt) {
  const Incarnation peer = attempt.machine.peer()->identity.incarnation;
  const Call call = attempt.call;
  const Status superseded(Code::kCancelled, kSuperseded);
  if (const auto existing = connections_.Find(peer); existing != nullptr) {
    ReleaseHeld(peer, /*superseded=*/true);
    Send(attempt, attempt.machine.Refuse(superseded));
    Erase(attempt, /*linger=*/true);
    if (existing->view().usable()) return connector_.Resolve(call, Status::Ok(), existing);
    return connector_.WaitFor(call, peer);
  }
  if (Attempt* incoming = FindIncoming(peer);
      incoming != nullptr && incoming->stage != Attempt::Stage::kHeld) {
    if (context_.options.self.incarnation > peer) {
      Send(attempt, attempt.machine.Refuse(superseded));
      Erase(attempt, /*linger=*/true);
      return connector_.WaitFor(call, peer);
    }
    Erase(*incoming, /*linger=*/false);
  }
  Send(attempt, attempt.machine.Accept());
  Establish(attempt);
}

void Handshakes::Establish(Attempt& attempt) {
  const Call call = attempt.call;
  const Hello& hello = *attempt.machine.peer();
  const Incarnation peer = hello.identity.incarnation;
  SocketAddress address = attempt.address;
  if (attempt.role == Role::kResponder && hello.port != 0) address.set_port(hello.port);
  context_.sockets.Forget(attempt.key);
  Proven proven{attempt.role, hello, RunAndNumber(address), std::move(attempt.channel)};
  Erase(attempt, /*linger=*/false);
  if (call != nullptr) {
    ReleaseHeld(peer, /*superseded=*/true);
    connector_.WaitFor(call, peer);
  }
  proven_(std::move(proven));
}

void Handshakes::ReleaseHeld(Incarnation peer, bool superseded) {
  Attempt* held = FindIncoming(peer);
  if (held == nullptr || held->stage != Attempt::Stage::kHeld) return;
  if (!superseded) return AskAdmit(*held);
  Send(*held, held->machine.Refuse({Code::kCancelled, kSuperseded}));
  Erase(*held, /*linger=*/true);
}

Handshakes::Attempt* Handshakes::FindIncoming(Incarnation peer) {
  for (auto& [id, attempt] : attempts_) {
    if (attempt.role == Role::kResponder && attempt.stage >= Attempt::Stage::kHeld &&
        attempt.machine.peer()->identity.incarnation == peer) {
      return &attempt;
    }
  }
  return nullptr;
}

// --- Ends of attempts ----------------------------------------------------------------------------

/// We refuse: the peer learns why.
void Handshakes::Refuse(Attempt& attempt, const Status& reason) {
  if (attempt.machine.state() != Handshaker::State::kFailed) Send(attempt, attempt.machine.Refuse(reason));
  Fail(attempt, reason);
}

void Handshakes::Fail(Attempt& attempt, Status reason) {
  const Call call = attempt.call;
  const SocketAddress address = attempt.address;
  const auto peer = attempt.machine.peer();
  const bool proven = attempt.stage >= Attempt::Stage::kHeld;
  if (call == nullptr) LogRefusal(attempt, reason);
  Erase(attempt, /*linger=*/attempt.stage != Attempt::Stage::kConnecting);
  if (call != nullptr) return connector_.OnAttemptFailed(call, address, reason);
  if (proven) connector_.OnIncomingFailed(peer->identity.incarnation);
}

void Handshakes::Erase(Attempt& attempt, bool linger) {
  if (attempt.call != nullptr) --attempt.call->running;
  context_.timers.Cancel(attempt.limit);
  context_.sockets.Forget(attempt.key);
  if (linger) lingering_.Add(std::move(attempt.channel), attempt.stage >= Attempt::Stage::kHeld);
  half_open_.Remove(attempt.id);
  attempts_.erase(attempt.id);
}

/// At most a line a second: anyone can connect, and must not fill the disk.
void Handshakes::LogRefusal(const Attempt& attempt, const Status& reason) {
  const bool refused = attempt.machine.state() == Handshaker::State::kFailed && !attempt.machine.superseded();
  // Someone who connects and leaves, a health check or a second try say, is not worth a warning.
  const bool warn = refused || reason.code() == Code::kExhausted;
  const auto left_out = (warn ? warning_ : detail_).Due(Clock::now());
  if (!left_out) return;
  const auto& peer = attempt.machine.peer();
  const std::string text =
      StrCat("no connection with ", peer ? Printable(ToString(peer->identity), 200) : std::string("a peer"),
             " at ", RunAndNumber(attempt.address), ": ", reason.message());
  if (!warn) {
    WC_LOG(kDebug, text);
    return;
  }
  WC_LOG(kWarning, text, LeftOutText(*left_out));
}

}  // namespace weightcast::endpoint
