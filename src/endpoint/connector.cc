#include "endpoint/connector.h"

#include "base/advice.h"
#include "base/strings.h"
#include "endpoint/handshake_listener.h"
#include "endpoint/handshakes.h"

namespace weightcast::endpoint {
namespace {

/// At whether a caller inside Connect is to give up.
constexpr Duration kBetweenLooks = std::chrono::milliseconds(100);
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

Result<Connector::ConnectionState> Connector::Connect(const std::vector<std::string>& addresses,
                                                      const Identity& expected, TimePoint deadline,
                                                      std::string key) {
  if (auto existing = connections_.FindMatching(expected); existing != nullptr && existing->view().usable()) {
    return existing;
  }
  const auto call = std::make_shared<ConnectCall>();
  WC_ASSIGN_OR_RETURN(call->addresses, ResolveAll(addresses));
  call->expected = expected;
  call->deadline = deadline;
  call->key = std::move(key);
  SubmitNow(context_.progress, [this, call] { Begin(call); });
  // The call has its own limit.
  const auto& interrupted = context_.options.interrupted;
  while (!context_.progress.WaitFor(call->done, 1, interrupted ? In(kBetweenLooks) : kNever)) {
    if (!interrupted()) continue;
    const Status reason = InterruptedCall(StrCat("connecting to ", Named(expected)));
    context_.progress.Call([&] { Resolve(call, reason, nullptr); });
    break;
  }
  if (!call->status.ok()) return call->status;
  return call->connection;
}

void Connector::Stop() {
  stopped_ = true;
  for (const Call& call : std::list<Call>(calls_)) Resolve(call, ClosedHere("the endpoint"), nullptr);
}

void Connector::Begin(const Call& call) {
  if (stopped_) return Resolve(call, ClosedHere("the endpoint"), nullptr);
  if (const auto existing = connections_.FindMatching(call->expected);
      existing != nullptr && existing->view().usable()) {
    return Resolve(call, Status::Ok(), existing);
  }
  calls_.push_back(call);
  call->target = call->expected.incarnation;
  call->limit = context_.timers.Add(call->deadline, [this, call] { GiveUp(call); });
  if (call->target != 0 && handshakes_.BeingMade(call->target)) return WaitFor(call, call->target);
  StartConnecting(call);
}

void Connector::GiveUp(const Call& call) {
  std::string addresses;
  for (const SocketAddress& address : call->addresses)
    addresses += StrCat(addresses.empty() ? " at " : ", ", address.ToString());
  std::string errors;
  for (const std::string& error : call->errors) errors += StrCat("; ", error);
  Resolve(call,
          Error(Code::kTimedOut, "no connection to ", Named(call->expected), addresses,
                " within the timeout (of this call, or setting connect_timeout); check that it runs, "
                "its address and the firewall",
                errors),
          nullptr);
}

void Connector::StartConnecting(const Call& call) {
  call->stage = ConnectCall::Stage::kConnecting;
  call->next = 0;
  call->errors.clear();
  call->worst = Code::kTimedOut;
  call->dropped = false;
  TryNext(call);
}

void Connector::TryNext(const Call& call) {
  context_.timers.Cancel(call->again);
  while (call->next < call->addresses.size()) {
    const SocketAddress& address = call->addresses[call->next++];
    if (Status status = handshakes_.Start(call, address); !status.ok()) {
      AddError(*call, address, status);
      continue;
    }
    if (call->next < call->addresses.size()) {
      call->again = context_.timers.Add(In(kStagger), [this, call] { TryNext(call); });
    }
    return;
  }
  if (call->running == 0) FailConnecting(call);
}

void Connector::OnAttemptFailed(const Call& call, const SocketAddress& address, const Status& reason) {
  AddError(*call, address, reason);
  if (call->stage == ConnectCall::Stage::kConnecting) TryNext(call);
}

void Connector::OnIncomingFailed(Incarnation peer) {
  for (const Call& waiting : std::list<Call>(calls_)) {
    if (waiting->target == peer) Reconsider(waiting);
  }
}

void Connector::AddError(ConnectCall& call, const SocketAddress& address, const Status& status) {
  const std::string text = address.ToString();
  const bool named = status.message().find(text) != std::string::npos;
  call.errors.push_back(named ? status.message() : StrCat(text, ": ", status.message()));
  if (Weight(status.code()) > Weight(call.worst)) call.worst = status.code();
}

/// Every address has failed. A peer that is there and has too much to do is asked again.
void Connector::FailConnecting(const Call& call) {
  if (call->dropped && Weight(call->worst) <= Weight(Code::kUnavailable)) {
    call->again = context_.timers.Add(In(kBeforeRetry), [this, call] { StartConnecting(call); });
    return;
  }
  const std::string errors = Join(call->errors, "; ");
  // What an address says may tell what to do.
  const bool told = call->worst != Code::kUnavailable || errors.find("check ") != std::string::npos;
  Resolve(call,
          {call->worst, StrCat("cannot connect to ", Named(call->expected), ": ", errors,
                               told ? "" : "; check that it runs, its address and the firewall")},
          nullptr);
}

void Connector::WaitFor(const Call& call, Incarnation target) {
  if (call->stage == ConnectCall::Stage::kOver) return;
  call->stage = ConnectCall::Stage::kWaiting;
  call->target = target;
  handshakes_.Drop(call);
  context_.timers.Cancel(call->again);
  call->again = context_.timers.Add(In(kBeforeRetry), [this, call] { Reconsider(call); });
  handshakes_.ReleaseHeld(target, /*superseded=*/false);
}

/// Whether what a call waits for is still on its way; otherwise it connects again.
void Connector::Reconsider(const Call& call) {
  if (call->stage != ConnectCall::Stage::kWaiting) return;
  context_.timers.Cancel(call->again);
  if (handshakes_.BeingMade(call->target)) {
    call->again = context_.timers.Add(In(kBeforeRetry), [this, call] { Reconsider(call); });
    return;
  }
  StartConnecting(call);
}

void Connector::Resolve(const Call& call, Status status, const ConnectionState& connection) {
  if (call->stage == ConnectCall::Stage::kOver) return;
  call->stage = ConnectCall::Stage::kOver;
  handshakes_.Drop(call);
  context_.timers.Cancel(call->again);
  context_.timers.Cancel(call->limit);
  call->status = std::move(status);
  call->connection = connection;
  call->done.Set(1);
  const Incarnation target = call->target;
  calls_.remove(Call(call));
  if (target != 0 && connection == nullptr) handshakes_.ReleaseHeld(target, /*superseded=*/false);
}

Connector::Call Connector::OwnCallTo(Incarnation peer) const {
  for (const Call& call : calls_) {
    if (call->stage == ConnectCall::Stage::kConnecting && call->target == peer) return call;
  }
  return nullptr;
}

void Connector::OnReady(const ConnectionState& connection) {
  const Identity& peer = connection->view().peer().identity;
  for (const Call& call : std::list<Call>(calls_)) {
    const bool known = call->target == peer.incarnation;
    const bool named = call->target == 0 && !call->expected.role.empty();
    if ((known || named) && Matches(call->expected, peer)) Resolve(call, Status::Ok(), connection);
  }
}

void Connector::OnLost(Incarnation peer, const Status& reason) {
  for (const Call& call : std::list<Call>(calls_)) {
    if (call->stage != ConnectCall::Stage::kWaiting || call->target != peer) continue;
    if (connections_.Find(peer) != nullptr) continue;  // Replaced by one that is on its way.
    // It broke: perhaps for another that took its place. Any other reason would come again.
    const bool broke = reason.code() == Code::kPeerDead && ++call->lost < kMaxLost;
    if (!broke) Resolve(call, reason, nullptr);
  }
}

}  // namespace weightcast::endpoint
