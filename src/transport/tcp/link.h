#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/grant_table.h"
#include "transport/imports.h"
#include "transport/tcp/copiers.h"
#include "transport/tcp/greeting.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/lane_recovery.h"
#include "transport/tcp/link_shared.h"
#include "transport/tcp/offer.h"
#include "transport/tcp/opening.h"
#include "transport/types.h"
#include "weightcast/clock.h"

namespace weightcast::transport::tcp {

/// The lanes to one peer, from the first attempt to connect to the last one down. What ends on it waits for
/// the copies of our own devices that are under way, never for a peer.
class Link final {
 public:
  Link(const Shared& shared, const LinkTerms& terms);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // --- Establishing
  [[nodiscard]] const LinkTerms& terms() const { return terms_; }
  /// Initiator: connects to what the answer says.
  Status Connect(const Answer& answer, TimePoint now);
  void OnConnectReady(uint32_t lane, size_t attempt, TimePoint now);
  /// Responder: does this link await this lane?
  [[nodiscard]] bool Awaits(const Greeting& greeting) const;
  void OnStart(const Greeting& start, UniqueFd socket);
  /// What is due by time alone; and when that will be.
  void Step(TimePoint now);
  [[nodiscard]] TimePoint NextStep() const;

  // --- Ready
  /// nullptr: no such lane, or it is down.
  Lane* lane(uint32_t index);
  [[nodiscard]] const Lanes& lanes() const { return lanes_; }
  size_t Post(uint32_t lane, std::span<const Op> ops);
  /// After anything that may have ended a lane: LinkDown after the last.
  void LookForDeadLanes();
  /// Goes on with what was left: see Lane::Continue.
  void Continue();
  /// Copies are over of which nobody has heard yet.
  [[nodiscard]] bool HasNews() const { return copiers_.HasNews(); }
  [[nodiscard]] Imports<ImportedRegion>& imports() { return imports_; }
  Status OpenGrant(const GrantName& grant, GrantReach ranges);
  void Revoke(const GrantName& grant);
  void Forget(const LocalRegion& region);
  /// Ends everything; its events but LinkClosed are in the queue once it is closed().
  void Close();
  /// Closed, and no copy between device memory and its blocks is under way.
  [[nodiscard]] bool closed() const { return state_ == State::kClosed; }
  [[nodiscard]] std::string Describe() const;

 private:
  enum class State : uint8_t { kOpening, kReady, kDown, kClosing, kClosed };
  /// A revoke that waits for copies.
  struct Revoking {
    GrantName grant;
    device::EngineFence copies;
  };

  void BecomeReady();
  void GoDown(Status reason);
  void EndRevokes();
  void EndClosing();

  Copiers copiers_;
  LinkTerms terms_;
  GrantTable grants_;
  const LinkShared shared_;
  State state_ = State::kOpening;
  std::optional<Opening> opening_;  ///< While kOpening.
  Lanes lanes_;
  LaneRecovery recovery_;
  Imports<ImportedRegion> imports_;
  std::vector<Revoking> revoking_;
  Status failure_;  ///< Of copies: why the link ends.
};

}  // namespace weightcast::transport::tcp
