#include "endpoint/connection_manager.h"

#include <algorithm>

#include "base/advice.h"
#include "base/log.h"
#include "base/random.h"
#include "base/strings.h"
#include "endpoint/core.h"

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

Status ConnectionManager::Start() {
  WC_ASSIGN_OR_RETURN(listener_key_, core_.sockets().Watch(listener_.socket.get(), EPOLLIN,
                                                           [this](uint32_t) { OnAcceptable(); }));
  return Status::Ok();
}

void ConnectionManager::Stop() {
  stopped_ = true;
  core_.sockets().Forget(listener_key_);
  core_.timers().Cancel(accept_pause_);
  listener_.socket.reset();
  for (const Call& call : std::list<Call>(calls_)) {
    Resolve(call, ClosedHere("the endpoint"), nullptr);
  }
  while (!attempts_.empty()) Erase(attempts_.begin()->second, /*linger=*/false);
}

// --- Attempts ----------------------------------------------------------------------------------

ConnectionManager::Attempt& ConnectionManager::NewAttempt(Role role, UniqueFd fd,
                                                          const SocketAddress& address, const Call& call) {
  const uint64_t id = ++last_attempt_;
  Hello hello{.port = listener_.port,
              .identity = core_.self(),
              .boot_id = core_.boot_id(),
              .chunk = core_.settings().chunk,
              .lease = core_.settings().lease};
  FillRandom(hello.nonce);
  const FindKey find_key = [this, key = call == nullptr ? std::string() : call->key](const Identity& peer) {
    return key.empty() ? core_.KeyFor(peer) : Key{Key::Of::kPair, key};
  };
  Handshaker machine(role, std::move(hello), find_key, call == nullptr ? Identity{} : call->expected);
  Attempt& attempt = attempts_
                         .emplace(id, Attempt{.id = id,
                                              .role = role,
                                              .begun = Clock::now(),
                                              .channel = Channel(std::move(fd)),
                                              .machine = std::move(machine),
                                              .address = address,
                                              .call = call})
                         .first->second;
  attempt.limit = core_.timers().Add(In(core_.settings().connect_timeout), [this, id] {
    if (Attempt* late = Find(id)) {
      FailAttempt(*late,
                  {Code::kTimedOut, StrCat("no handshake within ", Seconds(core_.settings().connect_timeout),
                                           " s (connect_timeout); check that it is a weightcast endpoint")});
    }
  });
  return attempt;
}

Status ConnectionManager::WatchAttempt(Attempt& attempt, uint32_t events) {
  WC_ASSIGN_OR_RETURN(attempt.key,
                      core_.sockets().Watch(attempt.channel.fd(), events,
                                            [this, id = attempt.id](uint32_t e) { OnSocket(id, e); }));
  return Status::Ok();
}

ConnectionManager::Attempt* ConnectionManager::Find(uint64_t id) {
  const auto found = attempts_.find(id);
  return found == attempts_.end() ? nullptr : &found->second;
}

void ConnectionManager::OnSocket(uint64_t id, uint32_t events) {
  Attempt* attempt = Find(id);
  if (attempt == nullptr) return;
  if (attempt->stage == Attempt::Stage::kConnecting) return OnConnectable(*attempt);
  if ((events & EPOLLOUT) != 0 && attempt->channel.Flush().ok() && !attempt->channel.waiting()) {
    core_.sockets().Change(attempt->key, EPOLLIN);
  }
  Read(id);
}

void ConnectionManager::Read(uint64_t id) {
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
  FailAttempt(*attempt, received);
}

void ConnectionManager::Send(Attempt& attempt, const Message& message) {
  // A broken socket shows when it is read next.
  if (!attempt.channel.Send(message).ok()) return;
  if (attempt.channel.waiting()) core_.sockets().Change(attempt.key, EPOLLIN | EPOLLOUT);
}

void ConnectionManager::React(Attempt& attempt) {
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
        return WaitFor(call, call->target);
      }
      return FailAttempt(attempt, attempt.machine.failure());
  }
}

/// The peer has proven itself. If both sides have begun, the lower incarnation's connection lives.
void ConnectionManager::Decide(Attempt& attempt) {
  const Incarnation peer = attempt.machine.peer()->identity.incarnation;
  if (attempt.role == Role::kResponder) {
    if (const Call call = OwnCallTo(peer); call != nullptr) {
      const bool own_has_met = std::any_of(attempts_.begin(), attempts_.end(), [&](const auto& entry) {
        return entry.second.call == call && entry.second.machine.peer().has_value();
      });
      if (core_.self().incarnation < peer && own_has_met) {
        attempt.stage = Attempt::Stage::kHeld;
        return;
      }
      WaitFor(call, peer);
    }
  }
  AskAdmit(attempt);
}

void ConnectionManager::AskAdmit(Attempt& attempt) {
  attempt.stage = Attempt::Stage::kDeciding;
  const auto& admit = core_.admit();
  if (!admit) return OnAdmit(attempt.id, Status::Ok());
  core_.LaterOnThread([core = core_.shared_from_this(), this, id = attempt.id, admit,
                       identity = attempt.machine.peer()->identity] {
    core->progress().Submit(MakeTask([this, id, status = admit(identity)] { OnAdmit(id, status); }), true);
  });
}

void ConnectionManager::OnAdmit(uint64_t id, const Status& status) {
  Attempt* attempt = Find(id);
  if (attempt == nullptr || attempt->stage != Attempt::Stage::kDeciding) return;
  if (!status.ok()) return Refuse(*attempt, status);
  attempt->stage = Attempt::Stage::kAdmitted;
  if (attempt->role == Role::kResponder) Send(*attempt, attempt->machine.Accept());
  React(*attempt);
}

/// Our own attempt has succeeded on both sides; only we can still drop it.
void ConnectionManager::Settle(Attempt& attempt) {
  const Incarnation peer = attempt.machine.peer()->identity.incarnation;
  const Call call = attempt.call;
  const Status superseded(Code::kCancelled, kSuperseded);
  if (const auto existing = core_.FindLive(peer); existing != nullptr) {
    ReleaseHeld(peer, /*superseded=*/true);
    Send(attempt, attempt.machine.Refuse(superseded));
    Erase(attempt, /*linger=*/true);
    if (existing->usable()) return Resolve(call, Status::Ok(), existing);
    return WaitFor(call, peer);
  }
  if (Attempt* incoming = FindIncoming(peer);
      incoming != nullptr && incoming->stage != Attempt::Stage::kHeld) {
    if (core_.self().incarnation > peer) {
      Send(attempt, attempt.machine.Refuse(superseded));
      Erase(attempt, /*linger=*/true);
      return WaitFor(call, peer);
    }
    Erase(*incoming, /*linger=*/false);
  }
  Send(attempt, attempt.machine.Accept());
  Establish(attempt);
}

void ConnectionManager::Establish(Attempt& attempt) {
  const Call call = attempt.call;
  const Hello& hello = *attempt.machine.peer();
  const Incarnation peer = hello.identity.incarnation;
  SocketAddress address = attempt.address;
  if (attempt.role == Role::kResponder && hello.port != 0) address.set_port(hello.port);
  core_.sockets().Forget(attempt.key);
  Proven proven{attempt.role, hello, RunAndNumber(address), std::move(attempt.channel)};
  Erase(attempt, /*linger=*/false);
  if (call != nullptr) {
    ReleaseHeld(peer, /*superseded=*/true);
    WaitFor(call, peer);
  }
  core_.OnProven(std::move(proven));
}

void ConnectionManager::ReleaseHeld(Incarnation peer, bool superseded) {
  Attempt* held = FindIncoming(peer);
  if (held == nullptr || held->stage != Attempt::Stage::kHeld) return;
  if (!superseded) return AskAdmit(*held);
  Send(*held, held->machine.Refuse({Code::kCancelled, kSuperseded}));
  Erase(*held, /*linger=*/true);
}

ConnectionManager::Attempt* ConnectionManager::FindIncoming(Incarnation peer) {
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
void ConnectionManager::Refuse(Attempt& attempt, const Status& reason) {
  if (attempt.machine.state() != Handshaker::State::kFailed) Send(attempt, attempt.machine.Refuse(reason));
  FailAttempt(attempt, reason);
}

void ConnectionManager::FailAttempt(Attempt& attempt, const Status& reason) {
  const Call call = attempt.call;
  const bool incoming = attempt.role == Role::kResponder;
  const auto peer = attempt.machine.peer();
  const bool proven = attempt.stage >= Attempt::Stage::kHeld;
  if (incoming) {
    LogRefusal(attempt, reason);
  } else {
    AddError(*call, attempt.address, reason);
  }
  Erase(attempt, /*linger=*/attempt.stage != Attempt::Stage::kConnecting);
  if (call != nullptr && call->stage == ConnectCall::Stage::kConnecting) TryNext(call);
  if (!incoming || !proven) return;
  for (const Call& waiting : std::list<Call>(calls_)) {
    if (waiting->target == peer->identity.incarnation) Reconsider(waiting);
  }
}

void ConnectionManager::Erase(Attempt& attempt, bool linger) {
  if (attempt.call != nullptr) --attempt.call->running;
  core_.timers().Cancel(attempt.limit);
  core_.sockets().Forget(attempt.key);
  if (linger) core_.Linger(std::move(attempt.channel), attempt.stage >= Attempt::Stage::kHeld);
  half_open_.Remove(attempt.id);
  attempts_.erase(attempt.id);
}

/// At most a line a second: anyone can connect, and must not fill the disk.
void ConnectionManager::LogRefusal(const Attempt& attempt, const Status& reason) {
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
