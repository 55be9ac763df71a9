#pragma once

#include "control/rules.h"

namespace weightcast::control {

struct OpeningState;

/// When an update opens, and which engines take part in it.
class OpeningRule final : public Opening, private Rule {
 public:
  OpeningRule(const Context& context, OpeningState& state) : Rule(context), state_(state) {}

  // For the others.
  void ForgetFailures(GroupId group) override;
  void ForgetGroup(GroupId group) override;
  void NoteEnd(const EngineEnd& end, const Version& version) override;
  [[nodiscard]] bool IsGivenUp(GroupId group, const Version& version) const override;
  [[nodiscard]] bool IsAtFault(GroupId group, const Version& version) const override;

  void OnFenceTimer();

  /// After each event outside an update.
  void TryOpen();

 private:
  /// What part an engine takes in an update.
  enum class Part { kTarget, kAbsent, kIgnored, kFencing };
  [[nodiscard]] Part PartOf(const Group& group, NewUpdate& update) const;
  /// Why an engine cannot take part: ok if it can.
  [[nodiscard]] Status WhyFencing(const Group& group) const;
  void OpenFor(NewUpdate update);

  OpeningState& state_;
};

}  // namespace weightcast::control
