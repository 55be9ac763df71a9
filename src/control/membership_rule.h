#pragma once

#include <string>

#include "control/rules.h"

namespace weightcast::control {

struct MembershipState;

/// Who is here: a Hello, a group and its time limit to become whole, and the loss of a worker. The only rule
/// that adds to the roster, or removes from it.
class MembershipRule final : public Membership, private Rule {
 public:
  MembershipRule(const Context& context, MembershipState& state) : Rule(context), state_(state) {}

  // For the others.
  const Group& GroupFor(const protocol::Hello& hello) override;
  using Membership::Refuse;
  void Refuse(const std::vector<SessionId>& sessions, const Status& reason) override;
  [[nodiscard]] const Status& engine_loss() const override;

  // Events.
  void OnAttached(const Attached& event);
  void OnBroken(const Worker& worker);
  void OnResumed(const Worker& worker);
  void OnGone(const Worker& worker, const Status& reason);
  void OnLeave(const Worker& worker);
  /// Its role does not send such a message.
  void RefuseMessage(const Worker& worker, std::string_view message);
  void OnRegister(const Worker& worker, const protocol::Register& message);
  void OnLandingMap(const Worker& worker);
  void OnSuspended(const Worker& rank);
  void OnJoinTimer(GroupId id);

  // After each event.
  void ForgetEmptyGroups();
  void ArmJoinTimers();

 private:
  /// Refuses, or removes the old holder of the place.
  [[nodiscard]] Status TakePlace(const protocol::Hello& hello);
  void Accept(const Attached& event);
  void AddWorker(SessionId session, const protocol::Hello& hello, const Group& group);
  /// The worker is gone: tells the others (but those who leave with it), and every part that it played ends.
  void Lose(SessionId session, const Status& reason, const std::vector<SessionId>& with_it = {});
  [[nodiscard]] bool IsWaiting(const Group& group) const;
  [[nodiscard]] Status WhyStillWaiting(const Group& group) const;
  [[nodiscard]] Status WhyNoPlan(const std::string& limit) const;

  MembershipState& state_;
};

}  // namespace weightcast::control
