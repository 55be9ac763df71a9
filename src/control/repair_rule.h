#pragma once

#include "control/rules.h"

namespace weightcast::control {

struct RepairState;

/// Other holders of an update's bytes: an update whose source is lost is finished from somebody else who has
/// them, and engines that lack what others serve get it from those.
class RepairRule final : public Repair, private Rule {
 public:
  RepairRule(const Context& context, RepairState& state) : Rule(context), state_(state) {}

  void Open(Holders first) override;
  void Close() override;
  [[nodiscard]] bool IsPlanned() const override;
  void PlanFailed(const Status& reason) override;
  void LoseSource(const Worker& lost, const Status& reason, std::optional<GroupId> only) override;
  void EngineOut(GroupId group, const Status& reason) override;
  void Advance() override;
  bool OpenFromPeers() override;
  [[nodiscard]] bool HasNewcomers() const override;

 private:
  [[nodiscard]] bool AnyHolder() const;
  [[nodiscard]] std::vector<SessionId> SessionsOf(Holders holders) const;
  [[nodiscard]] std::vector<SessionId> TrainersOf(Holders holders) const;
  [[nodiscard]] bool Holds(const Group& group, const Version& version) const;
  [[nodiscard]] Version NewestServed() const;
  [[nodiscard]] std::vector<const Group*> Lacking(const Version& version) const;
  /// Asks the ranks that lack bytes for grants to the sources of the repair's plan.
  void BeginAttempt();
  void OpenFor(std::vector<const Group*> lacking, size_t holders, const Version& version);

  RepairState& state_;
};

}  // namespace weightcast::control
