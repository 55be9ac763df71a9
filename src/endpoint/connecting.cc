// The half of ConnectionManager that serves callers in Endpoint::Connect: addresses, staggering, retries.

#include <algorithm>

#include "base/advice.h"
#include "base/strings.h"
#include "endpoint/connection_manager.h"
#include "endpoint/core.h"

namespace weightcast::endpoint {
namespace {

using transport::Role;

/// An address that has not answered by then is not waited for alone.
constexpr Duration kStagger = std::chrono::milliseconds(50);
/// Before connecting again when what was waited for has not come.
constexpr Duration kBeforeRetry = std::chrono::milliseconds(20);
/// Connections that may break before they are ready.
constexpr uint32_t kMaxLost = 3;

/// The more telling of two reasons.
int Weight(Code code) {
  switch (code) {
    case Code::kPermission:
      return 4;
    case Code::kProtocol:
    case Code::kInvalidArgument:
      return 3;
    case Code::kExhausted:
      return 2;
    case Code::kTimedOut:
      return 0;
    default:
      return 1;
  }
}

std::string Named(const Identity& expected) { return expected.role.empty() ? "a peer" : ToString(expected); }

}  // namespace

void ConnectionManager::Connect(std::shared_ptr<ConnectCall> call) {
  if (stopped_) return Resolve(call, ClosedHere("the endpoint"), nullptr);
  if (const auto existing = core_.FindMatching(call->expected); existing != nullptr && existing->usable()) {
    return Resolve(call, Status::Ok(), existing);
  }
  calls_.push_back(call);
  call->target = call->expected.incarnation;
  call->limit = core_.timers().Add(call->deadline, [this, call] { GiveUp(call); });
  const bool being_made =
      call->target != 0 && (core_.FindLive(call->target) != nullptr || FindIncoming(call->target) != nullptr);
  if (being_made) return WaitFor(call, call->target);
  StartConnecting(call);
}

void ConnectionManager::GiveUp(const Call& call) {
  std::string addresses;
  for (const SocketAddress& address : call->addresses)
    addresses += StrCat(addresses.empty() ? " at " : ", ", address.ToString());
  std::string errors;
  for (const std::string& error : call->errors) errors += StrCat("; ", error);
  Resolve(call,
          {Code::kTimedOut, StrCat("no connection to ", Named(call->expected), addresses,
                                   " within the timeout of this call; check that it runs, its address and "
                                   "the firewall",
                                   errors)},
          nullptr);
}

void ConnectionManager::Interrupt(const Call& call) {
  Resolve(call, InterruptedCall(StrCat("connecting to ", Named(call->expected))), nullptr);
}

void ConnectionManager::StartConnecting(const Call& call) {
  call->stage = ConnectCall::Stage::kConnecting;
  call->next = 0;
  call->errors.clear();
  call->worst = Code::kTimedOut;
  call->dropped = false;
  TryNext(call);
}

void ConnectionManager::TryNext(const Call& call) {
  core_.timers().Cancel(call->again);
  while (call->next < call->addresses.size()) {
    const SocketAddress& address = call->addresses[call->next++];
    if (Status status = StartAttempt(call, address); !status.ok()) {
      AddError(*call, address, status);
      continue;
    }
    if (call->next < call->addresses.size()) {
      call->again = core_.timers().Add(In(kStagger), [this, call] { TryNext(call); });
    }
    return;
  }
  if (call->running == 0) FailConnecting(call);
}

Status ConnectionManager::StartAttempt(const Call& call, const SocketAddress& address) {
  WC_ASSIGN_OR_RETURN(UniqueFd fd, StartConnect(address));
  TuneTcp(fd.get(), core_.settings().lease);
  Attempt& attempt = NewAttempt(Role::kInitiator, std::move(fd), address, call);
  attempt.stage = Attempt::Stage::kConnecting;
  ++call->running;
  Status status = WatchAttempt(attempt, EPOLLOUT);
  if (!status.ok()) Erase(attempt, /*linger=*/false);
  return status;
}

void ConnectionManager::OnConnectable(Attempt& attempt) {
  if (Status status = ConnectOutcome(attempt.channel.fd(), attempt.address); !status.ok()) {
    return FailAttempt(attempt, status);
  }
  attempt.stage = Attempt::Stage::kTalking;
  core_.sockets().Change(attempt.key, EPOLLIN);
  Send(attempt, attempt.machine.Start());
}

void ConnectionManager::AddError(ConnectCall& call, const SocketAddress& address,
                                 const Status& status) const {
  const std::string text = address.ToString();
  const bool named = status.message().find(text) != std::string::npos;
  call.errors.push_back(named ? status.message() : StrCat(text, ": ", status.message()));
  if (Weight(status.code()) > Weight(call.worst)) call.worst = status.code();
}

/// Every address has failed. A peer that is there and has too much to do is asked again.
void ConnectionManager::FailConnecting(const Call& call) {
  if (call->dropped && Weight(call->worst) <= Weight(Code::kUnavailable)) {
    call->again = core_.timers().Add(In(kBeforeRetry), [this, call] { StartConnecting(call); });
    return;
  }
  std::string errors;
  for (const std::string& error : call->errors) errors += StrCat(errors.empty() ? "" : "; ", error);
  // What an address says may tell what to do.
  const bool told = call->worst != Code::kUnavailable || errors.find("check ") != std::string::npos;
  Resolve(call,
          {call->worst, StrCat("cannot connect to ", Named(call->expected), ": ", errors,
                               told ? "" : "; check that it runs, its address and the firewall")},
          nullptr);
}

void ConnectionManager::WaitFor(const Call& call, Incarnation target) {
  if (call->stage == ConnectCall::Stage::kOver) return;
  call->stage = ConnectCall::Stage::kWaiting;
  call->target = target;
  DropAttempts(call);
  core_.timers().Cancel(call->again);
  call->again = core_.timers().Add(In(kBeforeRetry), [this, call] { Reconsider(call); });
  ReleaseHeld(target, /*superseded=*/false);
}

/// Whether what a call waits for is still on its way; otherwise it connects again.
void ConnectionManager::Reconsider(const Call& call) {
  if (call->stage != ConnectCall::Stage::kWaiting) return;
  core_.timers().Cancel(call->again);
  if (core_.FindLive(call->target) != nullptr || FindIncoming(call->target) != nullptr) {
    call->again = core_.timers().Add(In(kBeforeRetry), [this, call] { Reconsider(call); });
    return;
  }
  StartConnecting(call);
}

void ConnectionManager::DropAttempts(const Call& call) {
  for (auto next = attempts_.begin(); next != attempts_.end();) {
    Attempt& attempt = (next++)->second;
    if (attempt.call == call) Erase(attempt, /*linger=*/false);
  }
}

void ConnectionManager::Resolve(const Call& call, Status status,
                                const std::shared_ptr<Connection::State>& connection) {
  if (call->stage == ConnectCall::Stage::kOver) return;
  call->stage = ConnectCall::Stage::kOver;
  DropAttempts(call);
  core_.timers().Cancel(call->again);
  core_.timers().Cancel(call->limit);
  call->status = std::move(status);
  call->connection = connection;
  call->done.Set(1);
  const Incarnation target = call->target;
  calls_.remove(Call(call));
  if (target != 0 && connection == nullptr) ReleaseHeld(target, /*superseded=*/false);
}

ConnectionManager::Call ConnectionManager::OwnCallTo(Incarnation peer) const {
  for (const Call& call : calls_) {
    if (call->stage == ConnectCall::Stage::kConnecting && call->target == peer) return call;
  }
  return nullptr;
}

void ConnectionManager::OnConnectionReady(const std::shared_ptr<Connection::State>& connection) {
  for (const Call& call : std::list<Call>(calls_)) {
    const bool known = call->target == connection->peer().incarnation;
    const bool named =
        call->target == 0 && !call->expected.role.empty() && Matches(call->expected, connection->peer());
    if ((known && Matches(call->expected, connection->peer())) || named)
      Resolve(call, Status::Ok(), connection);
  }
}

void ConnectionManager::OnConnectionLost(Incarnation peer, const Status& reason) {
  for (const Call& call : std::list<Call>(calls_)) {
    if (call->stage != ConnectCall::Stage::kWaiting || call->target != peer) continue;
    if (core_.FindLive(peer) != nullptr) continue;  // Replaced by one that is on its way.
    // It broke: perhaps for another that took its place. Any other reason would come again.
    const bool broke = reason.code() == Code::kPeerDead && ++call->lost < kMaxLost;
    if (!broke) Resolve(call, reason, nullptr);
  }
}

}  // namespace weightcast::endpoint
