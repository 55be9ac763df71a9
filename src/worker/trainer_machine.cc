#include "worker/trainer_machine.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "protocol/limits.h"

namespace weightcast::worker {
namespace {

/// One transition: changes the state and collects what is to be done.
class TrainerTransition {
 public:
  explicit TrainerTransition(TrainerState& state) : s_(state) {}
  std::vector<TrainerAction> Take() { return std::move(actions_); }

  void operator()(const protocol::Welcome& welcome);
  void operator()(const protocol::Superseded& superseded);
  void operator()(const StartOrder& start);
  void operator()(const protocol::Stop& stop);
  void operator()(const protocol::Abort& abort);
  void operator()(const protocol::Release& release);
  void operator()(const protocol::Done& done);
  void operator()(const protocol::Lost& lost);
  void operator()(const TrainerPlanArrived& plan);
  void operator()(const TrainerPrepared& prepared);
  void operator()(const TrainerPlanFailed& failed);
  void operator()(const SendEnded& ended);
  void operator()(const SendFenced& fenced);
  void operator()(const TrainerEnded& ended);
  void operator()(const TrainerRegisterCalled&);
  void operator()(const PublishCalled& publish);
  void operator()(const CancelCalled& cancel);
  void operator()(const NoController& away);

 private:
  void Do(TrainerAction action) { actions_.push_back(std::move(action)); }
  void Send(protocol::WorkerMessage message) { Do(SendMessage{std::move(message)}); }
  Publication* Find(int64_t number);
  [[nodiscard]] bool IsHeld(const Publication& publication) const;

  void Offer(const Publication& publication);
  void OfferAgain(Publication& publication);
  template <typename Match>
  void Silence(Match match);
  void Let(Publication& publication, const Status& outcome);
  void TryFree(Publication& publication);
  void Finish(Publication& publication, const Status& status, const protocol::Done* done = nullptr);
  void Prune();

  TrainerState& s_;
  std::vector<TrainerAction> actions_;
};

// --- Finding --------------------------------------------------------------------------------------------

Publication* TrainerTransition::Find(int64_t number) {
  const auto at = std::find_if(s_.publications.begin(), s_.publications.end(),
                               [&](const auto& publication) { return publication.number == number; });
  return at == s_.publications.end() ? nullptr : &*at;
}

/// Whether its bytes are still promised.
bool TrainerTransition::IsHeld(const Publication& publication) const {
  const bool newest = &publication == &s_.publications.back();
  return !publication.release || (publication.hold && newest);
}

// --- The controller's messages ----------------------------------------------------------------------

void TrainerTransition::operator()(const protocol::Welcome& welcome) {
  if (s_.ended || welcome.term < s_.term) return;
  Silence([](const Sending&) { return true; });
  s_.term = welcome.term;
  s_.run = welcome.run;
  s_.epoch = 0;
  s_.prepared = false;
  Do(SendRegistration{});
  for (auto& publication : s_.publications) OfferAgain(publication);
  Prune();
}

void TrainerTransition::Offer(const Publication& publication) {
  Send(protocol::Published{.number = publication.number,
                           .run = publication.run,
                           .hold = publication.hold,
                           .label = publication.label});
}

/// A new session: the controller knows nothing of what was published.
void TrainerTransition::OfferAgain(Publication& publication) {
  const bool newest = &publication == &s_.publications.back();
  if (newest && IsHeld(publication)) {
    Offer(publication);
    // It may not have come to the one before.
    if (publication.cancelled) Send(protocol::Cancel{publication.number});
    return;
  }
  if (publication.done) return;
  const Status lost(
      Code::kUnavailable,
      StrCat(
          "the controller began a new session during version ", publication.number,
          "; its outcome is not known: look at the engines' states (`weightcast info`), or publish again"));
  Let(publication, lost);
  Finish(publication, lost);
}

void TrainerTransition::operator()(const protocol::Superseded& superseded) {
  Publication* publication = Find(superseded.version.number);
  if (publication == nullptr || publication->done) return;
  const Status reason(Code::kCancelled,
                      StrCat("version ", superseded.version.number,
                             " was superseded by a later one before its update began; wait for that one"));
  Let(*publication, reason);
  Finish(*publication, reason);
  Prune();
}

void TrainerTransition::operator()(const StartOrder& start) {
  if (s_.ended || start.update.term != s_.term) return;
  if (start.update.epoch != s_.epoch) {  // Nobody waits for what will not be sent.
    const Status reason(Code::kCancelled,
                        "the trainer registered again, which ends the publication; publish again");
    return Send(protocol::Failed{.update = start.update, .reason = reason});
  }
  Publication* publication = Find(start.version.number);
  if (publication == nullptr || !IsHeld(*publication)) {
    const Status reason(
        Code::kCancelled,
        StrCat("version ", start.version.number,
               " is no longer held by this trainer; another source or a newer version takes its place"));
    return Send(protocol::Failed{.update = start.update, .reason = reason});
  }
  if (std::exchange(publication->free, false)) Do(HoldSources{publication->number});
  s_.sendings.push_back({.update = start.update,
                         .number = publication->number,
                         .destination = start.destination,
                         .part = start.part});
  Do(BeginSending{start});
}

void TrainerTransition::operator()(const protocol::Stop& stop) {
  Silence([&](const Sending& sending) {
    return sending.update == stop.update && sending.destination == stop.destination;
  });
}

void TrainerTransition::operator()(const protocol::Abort& abort) {
  if (abort.update.term != s_.term) return;
  Silence([&](const Sending& sending) { return sending.update == abort.update; });
  s_.last_error = abort.reason;
  if (Publication* publication = Find(abort.version.number)) Let(*publication, abort.reason);
}

void TrainerTransition::operator()(const protocol::Release& release) {
  if (release.update.term != s_.term) return;
  if (Publication* publication = Find(release.version.number)) Let(*publication, Status::Ok());
}

void TrainerTransition::operator()(const protocol::Done& done) {
  Silence([&](const Sending& sending) { return sending.update == done.update; });
  if (!done.met_policy) s_.last_error = done.reason;
  Publication* publication = Find(done.version.number);
  if (publication == nullptr || publication->done) return;
  const Status outcome = done.met_policy ? Status::Ok() : done.reason;
  Let(*publication, outcome);
  Finish(*publication, outcome, &done);
  Prune();
}

void TrainerTransition::operator()(const protocol::Lost& lost) {
  s_.last_error =
      lost.reason;  // What becomes of an update the controller decides: others may have the bytes.
}

// --- The data plane -----------------------------------------------------------------------------------

void TrainerTransition::operator()(const TrainerPlanArrived& plan) {
  // Everything of older epochs is void.
  Silence([](const Sending&) { return true; });
  s_.epoch = plan.epoch;
  if (plan.run.number > s_.run.number) s_.run = plan.run;
  s_.prepared = false;
}

void TrainerTransition::operator()(const TrainerPrepared& prepared) {
  if (prepared.epoch != s_.epoch || s_.ended) return;
  s_.prepared = true;
  Send(protocol::Prepared{.epoch = s_.epoch});
}

void TrainerTransition::operator()(const TrainerPlanFailed& failed) {
  if (failed.epoch != s_.epoch || s_.ended) return;
  s_.last_error = failed.reason;
  Send(protocol::Failed{.update = {.term = s_.term, .epoch = s_.epoch},
                        .destination = failed.destination,
                        .reason = failed.reason});
}

void TrainerTransition::operator()(const SendEnded& ended) {
  for (auto& sending : s_.sendings) {
    const bool same = sending.update == ended.update && sending.destination == ended.destination &&
                      sending.part == ended.part;
    if (!same || sending.quiet) continue;
    sending.quiet = true;
    if (ended.status.ok()) continue;  // The receiver tells what has come.
    s_.last_error = ended.status;
    const int64_t destination = ended.path ? int64_t{ended.destination} : -1;
    Send(protocol::Failed{ended.update, destination, ended.status});
  }
}

void TrainerTransition::operator()(const SendFenced& fenced) {
  std::erase_if(s_.sendings, [&](const Sending& sending) {
    return sending.update == fenced.update && sending.destination == fenced.destination &&
           sending.part == fenced.part;
  });
  for (auto& publication : s_.publications) TryFree(publication);
  Prune();
}

void TrainerTransition::operator()(const TrainerEnded& ended) {
  if (s_.ended) return;
  s_.ended = true;
  s_.end = ended.reason;
  s_.last_error = ended.reason;
  Silence([](const Sending&) { return true; });
  for (auto& publication : s_.publications) {
    Let(publication, ended.reason);
    Finish(publication, ended.reason);
  }
  Prune();
}

// --- The user -----------------------------------------------------------------------------------------

void TrainerTransition::operator()(const TrainerRegisterCalled&) {
  if (s_.ended) return Do(AnswerTrainer{s_.end, {}});
  const bool busy =
      !s_.sendings.empty() || std::any_of(s_.publications.begin(), s_.publications.end(),
                                          [](const Publication& publication) { return !publication.free; });
  if (busy) {
    const Status reason(Code::kUnavailable, "an update is under way; register after its WaitSources");
    return Do(AnswerTrainer{reason, {}});
  }
  // A version that was held is not in this memory.
  for (auto& publication : s_.publications) publication.hold = false;
  // The plan is void with the old registration.
  s_.registered = true;
  s_.epoch = 0;
  s_.prepared = false;
  Do(SendRegistration{});
  Do(AnswerTrainer{});
}

void TrainerTransition::operator()(const PublishCalled& publish) {
  if (s_.ended) return Do(AnswerTrainer{s_.end, {}});
  Status error;
  if (!s_.registered) error = {Code::kInvalidArgument, "nothing is registered; call Register before Publish"};
  if (publish.number <= s_.last_number) {
    error = {Code::kInvalidArgument, StrCat("version ", publish.number, " is not higher than ",
                                            s_.last_number, "; give a higher number")};
  }
  if (publish.number > protocol::kMaxVersionNumber)
    error = {Code::kInvalidArgument,
             StrCat("version ", publish.number, " is too high; give a number of at most ",
                    protocol::kMaxVersionNumber)};
  if (error.ok()) error = protocol::CheckLabel(publish.label);
  if (!error.ok()) return Do(AnswerTrainer{error, {}});
  for (auto& publication : s_.publications) publication.hold = false;
  s_.last_number = publish.number;
  Publication& publication = s_.publications.emplace_back();
  publication.run = s_.run;
  publication.number = publish.number;
  publication.hold = publish.hold;
  publication.label = publish.label;
  Offer(publication);
  Prune();
  Do(AnswerTrainer{Status::Ok(), protocol::VersionOf(s_.run, publish.number, publish.label)});
}

void TrainerTransition::operator()(const CancelCalled& cancel) {
  Publication* publication = Find(cancel.number);
  if (publication == nullptr || s_.ended || (publication->done && !publication->hold)) return;
  publication->hold = false;
  publication->cancelled = true;
  Send(protocol::Cancel{cancel.number});
  if (publication->done) Silence([&](const Sending& sending) { return sending.number == cancel.number; });
}

/// The update ends here: from then on its sources may change, so no controller is offered it again. What is
/// held is; its sources do not change.
void TrainerTransition::operator()(const NoController& away) {
  Publication* publication = Find(away.number);
  if (publication == nullptr || s_.ended) return;
  // To the same controller, if it comes back in time to go on with this session.
  if (!publication->hold && !publication->done) Send(protocol::Cancel{away.number});
  Silence([&](const Sending& sending) { return sending.number == away.number; });
  s_.last_error = away.reason;
  Let(*publication, away.reason);
  Finish(*publication, away.reason);
  Prune();
}

// --- Parts of transitions -------------------------------------------------------------------------------

template <typename Match>
void TrainerTransition::Silence(Match match) {
  for (auto& sending : s_.sendings) {
    if (!match(sending) || sending.quiet) continue;
    sending.quiet = true;
    Do(StopSending{sending.update, sending.destination});
  }
}

void TrainerTransition::Let(Publication& publication, const Status& outcome) {
  if (publication.release) return;
  publication.release = true;
  publication.outcome = outcome;
  TryFree(publication);
}

void TrainerTransition::TryFree(Publication& publication) {
  const bool in_flight = std::any_of(s_.sendings.begin(), s_.sendings.end(), [&](const Sending& sending) {
    return sending.number == publication.number;
  });
  if (publication.free || !publication.release || in_flight) return;
  publication.free = true;
  Do(FreeSources{publication.number, publication.outcome});
}

void TrainerTransition::Finish(Publication& publication, const Status& status, const protocol::Done* done) {
  if (publication.done) return;
  publication.done = true;
  FinishUpdate action{.number = publication.number, .status = status, .done = std::nullopt};
  if (done != nullptr) action.done = *done;
  Do(std::move(action));
}

void TrainerTransition::Prune() {
  if (s_.publications.empty()) return;
  const int64_t newest = s_.publications.back().number;
  std::erase_if(s_.publications, [&](const Publication& publication) {
    return publication.done && publication.free && publication.number != newest;
  });
}

}  // namespace

std::vector<TrainerAction> Advance(TrainerState& state, const TrainerEvent& event) {
  TrainerTransition transition(state);
  std::visit(transition, event);
  return transition.Take();
}

}  // namespace weightcast::worker
