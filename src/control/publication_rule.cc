#include "control/publication_rule.h"

#include <algorithm>
#include <utility>

#include "control/publication_state.h"
#include "control/roster_facts.h"
#include "control/worker_change.h"

namespace weightcast::control {

// --- What the others ask --------------------------------------------------------------------------------

void PublicationRule::EndRun(const Status& reason) {
  FailWaiting(reason, true);
  state_.withdrawn = {};
  for (const SessionId session : roster_.trainers().ranks)
    if (session != 0) WorkerChange(roster_, *roster_.Find(session)).EndWaiting(/*keeps=*/false);
}

void PublicationRule::Opened() {
  for (const SessionId session : roster_.trainers().ranks)
    if (session != 0) WorkerChange(roster_, *roster_.Find(session)).EndWaiting(/*keeps=*/true);
}

void PublicationRule::Reopens() {
  for (const SessionId session : roster_.trainers().ranks)
    if (session != 0) WorkerChange(roster_, *roster_.Find(session)).WaitAgain();
}

// --- Answers --------------------------------------------------------------------------------------------

void PublicationRule::AnswerFailed(const Worker& trainer, int64_t number, const Status& reason) {
  protocol::Done done;
  done.version = protocol::VersionOf(rules_.runs->run(), number);
  done.reason = reason;
  out_.Send(trainer.session, std::move(done));
}

/// Bytes that came about before the run began, or in one that another controller counted. This trainer will
/// not publish the number again: others need not wait for it.
void PublicationRule::RefusePublished(const Worker& trainer, const protocol::Published& message) {
  const protocol::Run& run = rules_.runs->run();
  const std::string_view of = message.run.number == run.number ? " of an earlier controller" : "";
  const Status reason =
      Error(Code::kUnavailable, "version ", message.number, " of ", TextOf(roster_, trainer),
            " is from before a trainer or the controller restarted (run ", message.run.number, of, ", now ",
            run.number, "): publish the state that all trainers agree on under a higher number");
  AnswerFailed(trainer, message.number, reason);
  for (const SessionId session : OfferersOf(message.number))
    if (const Worker& other = *roster_.Find(session); other.waiting) WithdrawOffer(other, reason);
}

std::vector<SessionId> PublicationRule::OfferersOf(int64_t number) const {
  std::vector<SessionId> sessions;
  if (roster_.offers().Of(number) == 0) return sessions;
  for (const SessionId session : MembersOf(roster_.trainers()))
    if (roster_.Find(session)->offered == number) sessions.push_back(session);
  return sessions;
}

void PublicationRule::WithdrawOffer(const Worker& trainer, const Status& reason) {
  const int64_t number = trainer.offered;
  const bool waiting = trainer.waiting;
  WorkerChange(roster_, trainer).EndWaiting(/*keeps=*/false);
  if (waiting) AnswerFailed(trainer, number, reason);
}

void PublicationRule::NoteWithdrawn(int64_t number, const Status& reason) {
  if (number > state_.withdrawn.number) state_.withdrawn = {.number = number, .reason = reason};
}

void PublicationRule::AnswerWithdrawn(const Worker& trainer, int64_t number) {
  const Status& reason = state_.withdrawn.reason;
  if (!reason.ok()) return AnswerFailed(trainer, number, reason);
  out_.Send(trainer.session,
            protocol::Superseded{.version = protocol::VersionOf(rules_.runs->run(), number)});
}

void PublicationRule::Supersede(int64_t number) {
  for (const SessionId session : OfferersOf(number)) {
    const Worker& trainer = *roster_.Find(session);
    if (!trainer.waiting) continue;
    WorkerChange(roster_, trainer).EndWaiting(/*keeps=*/false);
    out_.Send(session, protocol::Superseded{.version = protocol::VersionOf(rules_.runs->run(), number)});
  }
  NoteWithdrawn(number, Status::Ok());
}

void PublicationRule::FailWaiting(const Status& reason, bool for_good) {
  if (roster_.offers().waiting() == 0) return;
  for (const SessionId session : MembersOf(roster_.trainers())) {
    const Worker& trainer = *roster_.Find(session);
    if (!trainer.waiting) continue;
    const int64_t number = trainer.offered;
    AnswerFailed(trainer, number, reason);
    if (for_good) NoteWithdrawn(number, reason);
    WorkerChange(roster_, trainer).EndWaiting(/*keeps=*/!for_good && trainer.hold);
  }
}

// --- What trainers say ----------------------------------------------------------------------------------

void PublicationRule::OnPublished(const Worker& trainer, const protocol::Published& message) {
  if (message.run != rules_.runs->run()) return RefusePublished(trainer, message);
  const int64_t before = trainer.offered;
  if (message.number <= before) {
    AnswerFailed(trainer, message.number,
                 Error(Code::kInvalidArgument, "version ", message.number, " is not newer than ", before,
                       ", which ", TextOf(roster_, trainer), " has published; publish a higher number"));
    return;
  }
  if (trainer.waiting) Supersede(before);
  if (message.number <= state_.withdrawn.number) return AnswerWithdrawn(trainer, message.number);
  WorkerChange(roster_, trainer).Offer(message);
}

void PublicationRule::OnCancel(const Worker& trainer, const protocol::Cancel& message) {
  const Status reason = Error(Code::kCancelled, "version ", message.number, " was cancelled by ",
                              TextOf(roster_, trainer), ", which called cancel; publish the next version");
  const bool offers = trainer.offered == message.number;
  const Updates& updates = *rules_.updates;
  const bool named = updates.open() && updates.update().version.number == message.number;
  const bool of_this_run = named && protocol::RunOf(updates.update().version) == rules_.runs->run();
  const auto keeps = [&](SessionId session) {
    return std::ranges::find(updates.update().trainers, session) != updates.update().trainers.end();
  };
  // Its session may be another than the one with which the update began.
  const bool open = named && (keeps(trainer.session) || (offers && of_this_run));
  if (offers || (open && of_this_run)) {
    for (const SessionId session : OfferersOf(message.number))
      WithdrawOffer(*roster_.Find(session),
                    reason);  // Not to be sent to engines that join later either.
    NoteWithdrawn(message.number, reason);
  }
  if (open) rules_.updates->Abort(reason);
}

// --- What cannot be completed ---------------------------------------------------------------------------

/// Numbers only grow: what one trainer has gone past, no other completes.
void PublicationRule::FailPassed() {
  if (!roster_.offers().AnyPassed()) return;
  const auto newest = std::ranges::max_element(roster_.workers(), {}, &Worker::offered);
  for (const Worker& trainer : roster_.workers()) {
    if (!trainer.waiting || trainer.offered == newest->offered) continue;
    WithdrawOffer(trainer,
                  Error(Code::kInvalidArgument, "version ", trainer.offered, " of ", TextOf(roster_, trainer),
                        " cannot be completed: ", TextOf(roster_, *newest), " has gone on to version ",
                        newest->offered, "; publish the state that they agree on under a higher number"));
  }
}

void PublicationRule::FailHopeless() {
  FailPassed();
  if (roster_.offers().waiting() == 0) return;
  const Group& trainers = roster_.trainers();
  if (!IsComplete(trainers) && !trainers.loss.ok()) return FailWaiting(trainers.loss, true);
  const Status& loss = rules_.membership->engine_loss();
  if (rules_.planning->plan().epoch == 0 || loss.ok()) return;
  const bool engine_left = std::ranges::any_of(
      roster_.groups(), [](const Group& group) { return group.id != kTrainers && IsComplete(group); });
  if (engine_left) return;
  // Engines may have left because a trainer died, before its lease has run out here.
  std::string broken;
  for (const Worker& worker : roster_.workers())
    if (worker.group == kTrainers && !worker.connected)
      broken += StrCat("; the connection of ", TextOf(roster_, worker), " is broken too");
  FailWaiting(Error(loss.code(), "no engine is left: ", loss.message(), broken,
                    "; start one again, then publish again"),
              false);
}

std::string PublicationRule::Disagreement() const {
  int64_t newest = -1;
  for (const Worker& worker : roster_.workers())
    if (worker.group == kTrainers) newest = std::max(newest, worker.offered);
  for (const Worker& worker : roster_.workers()) {
    if (worker.group != kTrainers || worker.offered == newest) continue;
    const std::string text = TextOf(roster_, worker);
    return worker.offered < 0 ? StrCat(text, " has not published version ", newest)
                              : StrCat(text, " is at version ", worker.offered, ", not ", newest);
  }
  return {};
}

void PublicationRule::ArmCatchUp() {
  const bool wanted = roster_.offers().waiting() != 0 && !rules_.updates->open() &&
                      IsComplete(roster_.trainers()) && CommonOffer(roster_) < 0;
  if (wanted == state_.catch_up_timer) return;
  state_.catch_up_timer = wanted;
  out_.ArmOrDisarm(wanted, TimerKind::kCatchUp, 0, config_.timeout);
}

void PublicationRule::OnCatchUpTimer() {
  if (!state_.catch_up_timer) return;
  state_.catch_up_timer = false;
  if (rules_.updates->open() || CommonOffer(roster_) >= 0) return;
  const Status reason = Error(Code::kTimedOut, Disagreement(), " within ", Seconds(config_.timeout),
                              " s (setting timeout); see the log of that trainer");
  rules_.last_error = reason;
  out_.Log(LogLevel::kError, reason.message());
  FailWaiting(reason, true);
}

}  // namespace weightcast::control
