#pragma once

#include "control/rules.h"

namespace weightcast::control {

struct LastCommand;
struct CommandState;

/// Engines with an EngineControl: paused before their tensors change, let go on once all of them serve one
/// version, and kept from requests while they have none.
class CommandRule final : public Commands, private Rule {
 public:
  CommandRule(const Context& context, CommandState& state) : Rule(context), state_(state) {}

  // For the others.
  Answer Ask(const Group& group, protocol::Command command, const Version& version) override;
  [[nodiscard]] Status Overdue(const Group& group) const override;
  Status TimedOut(const Group& group) override;
  void Attach(SessionId session, const protocol::Hello& hello) override;

  // Events of the EngineControl of this group.
  void OnGone(const Group& group, const Status& reason);
  void OnMessage(const Group& group, const protocol::WorkerMessage& message);

  /// Outside updates: engines that serve one version get requests, others do not.
  void CommandIdle();

 private:
  void Lose(const Group& group, const Status& reason);
  void OnResult(const Group& group, const protocol::EngineCommandResult& message);
  void Send(const Group& group, protocol::Command command, const Version& version,
            const Status& reason = Status::Ok());
  void SetLastError(const Group& group, const Status& reason);

  CommandState& state_;
};

}  // namespace weightcast::control
