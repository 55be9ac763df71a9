// The half of ConnectionManager that lets peers in.

#include "base/log.h"
#include "base/socket.h"
#include "base/strings.h"
#include "endpoint/connection_manager.h"
#include "endpoint/core.h"

namespace weightcast::endpoint {
namespace {

using transport::Role;

/// Accepted at once before others get their turn.
constexpr int kAcceptsAtOnce = 64;
/// How long nobody is accepted when descriptors have run out.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

}  // namespace

void ConnectionManager::OnAcceptable() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    auto fd = Accept(listener_.socket.get());
    if (!fd.ok()) {
      if (accept_complaint_.Due(Clock::now())) {
        WC_LOG(kError, "the endpoint accepts no connections now: ", fd.status().message());
      }
      // The pending connection stays readable: without a rest we would spin on it.
      if (half_open_.empty()) return PauseAccepting();
      SendAway(*Find(half_open_.Victim()));
      continue;
    }
    if (!fd->valid()) return;
    Admit(std::move(fd).value());
  }
}

void ConnectionManager::PauseAccepting() {
  core_.sockets().Change(listener_key_, 0);
  accept_pause_ =
      core_.timers().Add(In(kAcceptPause), [this] { core_.sockets().Change(listener_key_, EPOLLIN); });
}

void ConnectionManager::Admit(UniqueFd fd) {
  auto address = PeerAddressOf(fd.get());
  if (!address.ok()) return;  // Gone already.
  if (half_open_.full()) SendAway(*Find(half_open_.Victim()));
  TuneTcp(fd.get(), core_.settings().lease);
  Attempt& attempt = NewAttempt(Role::kResponder, std::move(fd), *address, nullptr);
  half_open_.Add(attempt.id);
  if (Status status = WatchAttempt(attempt, EPOLLIN); !status.ok()) return FailAttempt(attempt, status);
  // An honest hello is here already: whoever has said it is not among those who go first.
  Read(attempt.id);
}

void ConnectionManager::SendAway(Attempt& attempt) {
  LogRefusal(attempt, {Code::kExhausted,
                       "too many half-open handshakes; if these are processes of your job, raise the limit "
                       "of open files (ulimit -n)"});
  Erase(attempt, /*linger=*/false);
}

}  // namespace weightcast::endpoint
