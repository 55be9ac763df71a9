#pragma once

#include "control/rules.h"

namespace weightcast::control {

struct UpdateState;
struct UpdatesState;

/// The open update as a whole: its id, its publishers and sources, and its end.
class UpdateRule final : public Updates, private Rule {
 public:
  UpdateRule(const Context& context, UpdatesState& state) : Rule(context), state_(state) {}

  // For the others.
  [[nodiscard]] bool open() const override;
  [[nodiscard]] UpdateFacts update() const override;
  void Open(NewUpdate update) override;
  void OpenFromEngines(NewUpdate update) override;
  void BeginAttempt() override;
  void MarkStarted() override;
  void Abort(const Status& reason, EngineStep last) override;
  void Lose(const Worker& worker, const Status& reason) override;
  void BeginAgain(const Worker& rank, std::string_view what) override;
  [[nodiscard]] bool SwitchesTogether() const override;

  void OnFailed(const Worker& worker, const protocol::Failed& message);

  // After each event.
  /// What the last step has made possible.
  void Advance();
  /// An update that still waits for its first grants ends when all trainers have something newer.
  void SupersedeUnstarted();
  /// Engines that have not come to an update keep nobody else waiting once the others are through.
  void LeaveLate();

 private:
  void SetOpen(NewUpdate update);
  /// Who the sources of the plan are, for Done: they may have left by then.
  void AddSenders();
  void SourceFailed(const Worker& worker, const protocol::Failed& message, const Status& reason);
  void SourceBroken(const Worker& worker, const protocol::UpdateId& failed, const Status& reason);
  [[nodiscard]] bool IsSomethingNewer() const;
  void Withdraw();
  void ReleaseSources();
  void Finish();
  bool NoteEnds(const std::vector<EngineEnd>& ends, const Version& version);
  /// Those of them that are here.
  void SendTo(std::span<const SessionId> sessions, const protocol::ControllerMessage& message);

  UpdatesState& state_;
};

}  // namespace weightcast::control
