#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/backoff.h"
#include "transport/grant_table.h"
#include "transport/imports.h"
#include "transport/tcp/copiers.h"
#include "transport/tcp/greeting.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/lane_connector.h"
#include "transport/tcp/offer.h"
#include "transport/types.h"
#include "weightcast/clock.h"

namespace weightcast::transport::tcp {

/// What a link is opened with.
struct LinkTerms {
  LinkId id{};
  Role role = Role::kInitiator;
  Cookie ours{};
  Cookie theirs{};  ///< The initiator learns it from the answer.
  uint32_t lanes = 1;
  uint32_t depth = 1;
  TimePoint deadline;
  Duration lease{};
  std::optional<uint8_t> traffic_class;  ///< Of this side's packets; nullopt: the system's.
};

/// The lanes to one peer, from the first attempt to connect to the last one down.
///
/// A lane that fails while another one is left begins again, with a new socket under the same number and the
/// next *generation* (docs/wire.md, "lanes that fail"). In between both sides tell each other over the other
/// lanes that they have hung up: from then on nothing of the old socket can land, what it held completes, and
/// the initiator connects again, first soon and then more and more seldom.
class Link final : private Lane::Owner {
 public:
  Link(const LaneShared& shared, const LinkTerms& terms);
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
  [[nodiscard]] bool ready() const { return state_ == State::kReady; }
  /// nullptr: no such lane, or it is down.
  Lane* lane(uint32_t index);
  [[nodiscard]] std::vector<std::unique_ptr<Lane>>& lanes() { return lanes_; }
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
  [[nodiscard]] bool closing() const { return state_ >= State::kClosing; }
  /// Closed, and no copy between device memory and its blocks is under way.
  [[nodiscard]] bool closed() const { return state_ == State::kClosed; }
  /// Close, where nobody waits for the events: waits for the own copies.
  void CloseAndWait();
  [[nodiscard]] std::string Describe() const;

 private:
  enum class State : uint8_t { kOpening, kReady, kDown, kClosing, kClosed };
  /// What a lane's number has been through.
  struct Recovery {
    uint32_t number = 0;
    bool over = false;  ///< The peer has hung up too.
    /// We have hung up, and may say so only when our copies are over; and whether the peer has asked.
    bool copying = false;
    bool asked = false;
    std::string path;  ///< "10.0.0.1:4711 to 10.0.0.2:4712"
    Backoff backoff;
    // At the initiator, once it is over.
    TimePoint give_up;
    std::optional<LaneConnector> connector;
  };

  void OnHungUp() override;
  std::string_view OnLaneOver(uint32_t carrier, const Frame& frame) override;
  void SettleLane(uint32_t index);
  void EndCopying();
  void EndRevokes();
  void EndClosing();
  void Fail(const Status& reason);
  void StepRecovery(uint32_t index, TimePoint now);
  void BeginLane(uint32_t index, UniqueFd socket);
  std::unique_ptr<Lane> NewLane(uint32_t index, UniqueFd socket);
  LaneConnector NewConnector(uint32_t index, uint32_t generation) const;
  void SendStart(uint32_t index, uint32_t generation, const UniqueFd& socket) const;

  void OnWelcomed();
  void BecomeReady();
  [[nodiscard]] bool Down() const { return state_ > State::kReady; }
  void GoDown(Status reason);
  /// kOk, or what is wrong with an operation; `local` is found on the way.
  Code Check(const Op& op, LocalRegion*& local);

  /// A revoke that waits for copies.
  struct Revoking {
    GrantName grant;
    Copiers::Fence copies;
  };

  Copiers copiers_;
  LaneShared shared_;
  LinkTerms terms_;
  State state_ = State::kOpening;
  std::vector<LaneConnector> connectors_;
  std::vector<UniqueFd> started_;  ///< Sockets by lane until the link is ready.
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Recovery> recoveries_;      ///< One for each lane.
  std::vector<SocketAddress> addresses_;  ///< Initiator: the peer's.
  bool spread_ = false;                   ///< Initiator: lanes begin with different ones.
  GrantTable grants_;
  Imports<ImportedRegion> imports_;
  std::vector<Revoking> revoking_;
  Status failure_;  ///< Of copies: why the link ends.
};

}  // namespace weightcast::transport::tcp
