#pragma once

#include <string_view>

#include "control/rules.h"

namespace weightcast::control {

struct RanksState;
struct Receiver;

/// The inference ranks of the open update: what each is told, and what it answers.
class RankRule final : public Ranks, private Rule {
 public:
  RankRule(const Context& context, RanksState& state) : Rule(context), state_(state) {}

  // For the others.
  void Open(const std::vector<Seat>& seats) override;
  std::vector<Arrival> Close() override;
  [[nodiscard]] std::optional<RankProgress> Of(SessionId session) const override;
  [[nodiscard]] std::optional<GroupId> LackingAt(const protocol::UpdateId& id,
                                                 int64_t destination) const override;
  [[nodiscard]] bool AllAt(GroupId engine, RankStep step) const override;
  [[nodiscard]] bool AnyReady(GroupId engine) const override;
  [[nodiscard]] const Worker* MissingAt(GroupId engine, RankStep step) const override;
  [[nodiscard]] bool IsSettled(GroupId engine) const override;
  void Ask(GroupId engine) override;
  void AskForPart(GroupId engine, uint32_t part) override;
  void Start(const std::vector<GroupId>& engines) override;
  void Commit(GroupId engine) override;
  void Serve(GroupId engine) override;
  void Abort(GroupId engine, const Status& reason, SessionId fenced_already) override;
  void StopSenders(GroupId engine) override;
  void LoseSources(GroupId engine) override;
  void Renumber(std::span<const SessionId> destinations) override;
  void OnFailed(const Worker& rank, const protocol::Failed& message, const Status& reason) override;

  // Messages.
  void OnGranted(const Worker& worker, const protocol::Granted& message);
  void OnReady(const Worker& worker, const protocol::Ready& message);
  void OnSentDigests(const Worker& source, const protocol::SentDigests& message);
  void OnCommitted(const Worker& worker, const protocol::Committed& message);
  void OnServing(const Worker& worker, const protocol::Serving& message);
  void OnAborted(const Worker& worker, const protocol::Aborted& message);

 private:
  /// The rank of the worker if the message is about the open update and comes in turn; otherwise nullptr.
  /// What comes out of turn costs its engine the update.
  Receiver* InTurn(const Worker& worker, const protocol::UpdateId& update, RankStep step,
                   std::string_view what, std::optional<uint32_t> part = std::nullopt);

  RanksState& state_;
};

}  // namespace weightcast::control
