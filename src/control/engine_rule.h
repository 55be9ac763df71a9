#pragma once

#include "control/rules.h"

namespace weightcast::control {

struct EnginesState;
struct Target;

/// The engines of the open update: each goes from its grants to Serve, or is out.
class EngineRule final : public Engines, private Rule {
 public:
  EngineRule(const Context& context, EnginesState& state) : Rule(context), state_(state) {}

  [[nodiscard]] const EngineProgress* Of(GroupId group) const override;
  [[nodiscard]] const EngineCounts& counts() const override;
  [[nodiscard]] std::vector<GroupId> GroupsAt(EngineStep step) const override;
  void Open(const std::vector<GroupId>& engines, EngineStep first) override;
  std::vector<EngineEnd> Close() override;
  void BeginGrants(GroupId group) override;
  void Advance() override;
  void RanksCame(GroupId group, RankStep step) override;
  void CommandDone(GroupId group) override;
  void CommandFailed(GroupId group, const Status& reason) override;
  void Out(GroupId group, const Status& reason, const Worker* who, SessionId fenced_already) override;
  void OutUpTo(EngineStep last, const Status& reason) override;
  void LoseRank(GroupId group, const Status& reason, const Worker* who) override;
  void LoseSources(const Status& reason) override;
  [[nodiscard]] Lateness lateness() const override;
  void DropLate() override;
  void Withdraw() override;

 private:
  /// Every step of an engine goes through here.
  void SetStep(Target& target, EngineStep step);
  void Enter(Target& target, EngineStep step);
  void AskForGrants(Target& target);
  void StartGranted();
  void CommitReady();
  void EndPart(Target& target);
  /// `step` lasts until its EngineControl has done it, no time at all in an engine that has none.
  void AskControl(Target& target, EngineStep step, protocol::Command command, const Version& version);
  [[nodiscard]] bool IsLate(const Target& target) const;

  EnginesState& state_;
};

}  // namespace weightcast::control
