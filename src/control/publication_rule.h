#pragma once

#include <string>

#include "control/rules.h"

namespace weightcast::control {

struct PublicationState;

/// What the trainers publish, until it has an update or an answer.
class PublicationRule final : public Publications, private Rule {
 public:
  PublicationRule(const Context& context, PublicationState& state) : Rule(context), state_(state) {}

  // For the others.
  void EndRun(const Status& reason) override;
  void Opened() override;
  void Reopens() override;

  // Events.
  void OnPublished(const Worker& trainer, const protocol::Published& message);
  void OnCancel(const Worker& trainer, const protocol::Cancel& message);
  void OnCatchUpTimer();

  // After each event.
  void FailHopeless();
  void ArmCatchUp();

 private:
  void RefusePublished(const Worker& trainer, const protocol::Published& message);
  void AnswerFailed(const Worker& trainer, int64_t number, const Status& reason);
  /// The trainer offers nothing from now on; its publication ends with this reason if it still waits.
  void WithdrawOffer(const Worker& trainer, const Status& reason);
  void Supersede(int64_t number);
  void AnswerWithdrawn(const Worker& trainer, int64_t number);
  /// A trainer that publishes the number late gets this answer.
  void NoteWithdrawn(int64_t number, const Status& reason);
  /// Answers every publication that waits with this reason. `for_good`: its bytes are not available any more.
  void FailWaiting(const Status& reason, bool for_good);
  void FailPassed();
  /// Trainers that offer this number, by session.
  [[nodiscard]] std::vector<SessionId> OfferersOf(int64_t number) const;
  [[nodiscard]] std::string Disagreement() const;

  PublicationState& state_;
};

}  // namespace weightcast::control
