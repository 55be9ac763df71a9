#pragma once

#include "control/rules.h"

namespace weightcast::control {

struct DeadlineState;

/// How long an engine has for each step of an update, and what becomes of one that is late.
class DeadlineRule final : public Deadlines, private Rule {
 public:
  DeadlineRule(const Context& context, DeadlineState& state) : Rule(context), state_(state) {}

  // For the others.
  void Begin(GroupId engine) override;
  void End(GroupId engine) override;
  void BeginGrants(GroupId engine) override;
  void EndGrants(GroupId engine) override;
  [[nodiscard]] bool IsGranting(GroupId engine) const override;
  [[nodiscard]] bool IsOverdue(GroupId engine) const override;
  void Close() override;
  void Lose(GroupId group) override;
  void ForgetGroup(GroupId group) override;

  void OnStepTimer(GroupId group);

 private:
  [[nodiscard]] Duration LimitOf(const EngineProgress& engine) const;
  void SetGranting(GroupId group, bool granting);
  /// Ends the step of the engine, or the engine's part in the update.
  void TimedOut(const EngineProgress& engine);

  DeadlineState& state_;
};

}  // namespace weightcast::control
