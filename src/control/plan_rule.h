#pragma once

#include "control/rules.h"

namespace weightcast::control {

struct PlanState;

/// When to plan, and how the members of a plan get ready.
class PlanRule final : public Planning, private Rule {
 public:
  PlanRule(const Context& context, PlanState& state) : Rule(context), state_(state) {}

  // For the others.
  [[nodiscard]] PlanFacts plan() const override;
  [[nodiscard]] GroupFacts Of(GroupId group) const override;
  void MarkStale() override;
  void Changed(const Worker& worker) override;
  void Lose(const Worker& worker) override;
  void Unplan(GroupId group, bool sleeps) override;
  void ForgetGroup(GroupId group) override;
  void EndPartial() override;
  uint32_t PlanRepair(std::vector<SessionId> sources, bool from_engines,
                      const std::vector<GroupId>& engines) override;
  void Drop() override;

  // Events. What is about another plan than the present one is dropped: false.
  bool OnPlanMade(uint32_t epoch);
  bool OnPlanFailed(const PlanFailed& event);
  void OnPlanTimer();
  void OnPrepared(const Worker& worker, const protocol::Prepared& message);
  void OnPrepareFailed(const Worker& worker, const protocol::Failed& message);
  void OnPrepareTimer();
  void OnRetryTimer(GroupId group);

  /// After each event outside an update.
  void Replan();

 private:
  [[nodiscard]] bool IsMember(const Worker& worker) const;
  [[nodiscard]] bool IsPlannable(const Group& group) const;
  [[nodiscard]] bool IsPossible() const;
  [[nodiscard]] std::vector<SessionId> Newcomers() const;
  void StartPlan();
  void Void(Duration delay);
  /// `may_pass`: it could not be reached, which may change.
  void Blame(const Worker& culprit, const Status& reason, bool may_pass);

  PlanState& state_;
};

}  // namespace weightcast::control
