#pragma once

#include "control/rules.h"

namespace weightcast::control {

struct SteeringOrder;
struct SteeringState;

/// Engines with an EngineControl: paused before their tensors change, let go on once all of them serve one
/// version, and kept from requests while they have none.
class SteeringRule final : public Steering, private Rule {
 public:
  SteeringRule(const Context& context, SteeringState& state) : Rule(context), state_(state) {}

  // For the others.
  Answer Ask(const Group& group, protocol::Move move, const Version& version) override;
  [[nodiscard]] Status Overdue(const Group& group) const override;
  Status TimedOut(const Group& group) override;
  void Attach(SessionId session, const protocol::Hello& hello) override;

  // Events of the EngineControl of this group.
  void OnGone(const Group& group, const Status& reason);
  void OnMessage(const Group& group, const protocol::WorkerMessage& message);

  /// Outside updates: engines that serve one version get requests, others do not.
  void SteerIdle();

 private:
  void Lose(const Group& group, const Status& reason);
  void OnSteered(const Group& group, const protocol::Steered& message);
  void Order(const Group& group, protocol::Move move, const Version& version,
             const Status& reason = Status::Ok());
  void SetLastError(const Group& group, const Status& reason);

  SteeringState& state_;
};

}  // namespace weightcast::control
