// What ends on a link: grants and the link itself. Copies of our own devices that are under way are waited
// for, never a peer.
#include <algorithm>
#include <thread>
#include <utility>

#include "transport/tcp/link.h"

namespace weightcast::transport::tcp {

void Link::Continue() {
  if (copiers_.Advance()) shared_.moved = true;
  if (failure_.ok() && state_ == State::kReady) Fail(copiers_.failure());
  for (const auto& lane : lanes_) lane->Continue();
  if (state_ == State::kReady) EndCopying();
  EndRevokes();
  LookForDeadLanes();
  if (state_ == State::kClosing) EndClosing();
}

/// A device of this link copies no more, for good.
void Link::Fail(const Status& reason) {
  if (reason.ok()) return;
  failure_ = reason;
  for (const auto& lane : lanes_) {
    if (lane->open()) lane->HangUp(reason);
  }
}

void Link::Revoke(const GrantName& grant) {
  grants_.Close(grant);
  for (const auto& lane : lanes_) lane->Fence(grant);
  if (copiers_.idle()) {
    shared_.events.Push(Revoked{terms_.id, grant});
  } else {
    revoking_.push_back({grant, copiers_.MakeFence()});
  }
}

void Link::EndRevokes() {
  std::erase_if(revoking_, [&](const Revoking& each) {
    if (!copiers_.Over(each.copies)) return false;
    shared_.events.Push(Revoked{terms_.id, each.grant});
    return true;
  });
}

void Link::Close() {
  for (const auto& lane : lanes_) {
    lane->Flush();  // Answers that are due: what has landed shall not look lost to the peer.
    lane->Close();
  }
  for (Recovery& recovery : recoveries_) recovery.connector.reset();
  connectors_.clear();
  started_.clear();
  state_ = State::kClosing;
  EndClosing();
}

void Link::EndClosing() {
  if (!std::ranges::all_of(lanes_, [](const auto& lane) { return lane->quiet(); })) return;
  for (const auto& lane : lanes_) lane->Settle(Code::kCancelled);
  EndRevokes();
  state_ = State::kClosed;
}

void Link::CloseAndWait() {
  for (Close(); !closed(); std::this_thread::yield()) Continue();
}

}  // namespace weightcast::transport::tcp
