// The half of Meetings that lets peers in.

#include "base/log.h"
#include "base/socket.h"
#include "base/strings.h"
#include "endpoint/core.h"
#include "endpoint/meetings.h"

namespace weightcast::endpoint {
namespace {

using transport::Role;

/// Peers that have not proven themselves; beyond this the oldest goes, once it has had time enough for an
/// honest one.
constexpr size_t kMaxHalfOpen = 256;
constexpr Duration kHonestTime = std::chrono::seconds(1);
/// Accepted at once before others get their turn.
constexpr int kAcceptsAtOnce = 64;
/// How long the door stays shut when descriptors have run out, and when too many are half-open.
constexpr Duration kDoorRest = std::chrono::milliseconds(100);
constexpr Duration kRoomRest = std::chrono::milliseconds(10);

}  // namespace

void Meetings::OnDoor() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    // Those that came just now do not go: of many honest ones at once all get their turn.
    const Attempt* oldest = OldestOfTooMany();
    if (oldest != nullptr && Clock::now() - oldest->begun < kHonestTime) return RestDoor(kRoomRest);
    auto fd = Accept(door_.listener.get());
    if (!fd.ok()) {
      // The pending connection stays readable: without a rest we would spin on it.
      if (door_complaint_.Due(Clock::now())) {
        WC_LOG(kError, "cannot accept connections: ", fd.status().message(),
               "; raise the limit of open files (ulimit -n)");
      }
      return RestDoor(kDoorRest);
    }
    if (!fd->valid()) return;
    Admit(std::move(fd).value());
  }
}

void Meetings::RestDoor(Duration rest) {
  core_.sockets().Change(door_key_, 0);
  door_rest_ = core_.timers().Add(After(rest), [this] { core_.sockets().Change(door_key_, EPOLLIN); });
}

void Meetings::Admit(UniqueFd fd) {
  auto address = PeerAddressOf(fd.get());
  if (!address.ok()) return;  // Gone already.
  if (Attempt* oldest = OldestOfTooMany(); oldest != nullptr) {
    FailAttempt(*oldest, {Code::kExhausted, "too many half-open handshakes"});
  }
  TuneTcp(fd.get(), core_.settings().lease);
  Attempt& attempt = NewAttempt(Role::kResponder, std::move(fd), *address, {});
  if (Status status = WatchAttempt(attempt, EPOLLIN); !status.ok()) FailAttempt(attempt, status);
}

/// The oldest half-open handshake, if there are as many as there may be. Peers that have proven the token
/// are never the ones to go.
Meetings::Attempt* Meetings::OldestOfTooMany() {
  size_t half_open = 0;
  Attempt* oldest = nullptr;
  for (auto& [id, attempt] : attempts_) {
    if (attempt.role != Role::kResponder || attempt.stage != Attempt::Stage::kTalking) continue;
    ++half_open;
    if (oldest == nullptr) oldest = &attempt;
  }
  return half_open < kMaxHalfOpen ? nullptr : oldest;
}

}  // namespace weightcast::endpoint
