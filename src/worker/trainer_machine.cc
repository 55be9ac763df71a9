#include "worker/trainer_machine.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "protocol/limits.h"

namespace weightcast::worker {
namespace {

using TrainerTransition = Transition<TrainerState, TrainerAction>;

/// The versions that this trainer offers, and what its user is told of them.
class Publications {
 public:
  explicit Publications(TrainerTransition& transition) : t_(transition), s_(transition.state) {}

  Publication* Find(int64_t number) {
    const auto at = std::ranges::find(s_.publications, number, &Publication::number);
    return at == s_.publications.end() ? nullptr : &*at;
  }

  /// Whether its bytes are still promised.
  [[nodiscard]] bool IsHeld(const Publication& publication) const {
    const bool newest = &publication == &s_.publications.back();
    return !publication.release || (publication.hold && newest);
  }

  void Offer(const Publication& publication) {
    t_.Send(protocol::Published{.number = publication.number,
                                .run = publication.run,
                                .hold = publication.hold,
                                .label = publication.label});
  }

  /// A new session: the controller knows nothing of what was published.
  void OfferAgain(Publication& publication) {
    const bool newest = &publication == &s_.publications.back();
    if (newest && IsHeld(publication)) {
      Offer(publication);
      // It may not have come to the one before.
      if (publication.cancelled) t_.Send(protocol::Cancel{publication.number});
      return;
    }
    if (publication.done) return;
    const Status lost =
        Error(Code::kUnavailable, "the controller began a new session during version ", publication.number,
              "; its outcome is not known: look at the engines' states (`weightcast info "
              "--controller`), or publish again");
    End(publication, lost);
  }

  /// WaitSources returns, with `outcome`, once nobody reads the sources any more.
  void Let(Publication& publication, const Status& outcome) {
    if (publication.release) return;
    publication.release = true;
    publication.outcome = outcome;
    TryFree(publication);
  }

  void TryFree(Publication& publication) {
    const bool in_flight =
        std::ranges::find(s_.sendings, publication.number, &Sending::number) != s_.sendings.end();
    if (publication.free || !publication.release || in_flight) return;
    publication.free = true;
    t_.Add(FreeSources{publication.number, publication.outcome});
  }

  /// And Wait, now.
  void End(Publication& publication, const Status& outcome, const protocol::Done* done = nullptr) {
    Let(publication, outcome);
    if (std::exchange(publication.done, true)) return;
    FinishUpdate action{.number = publication.number, .status = outcome, .done = std::nullopt};
    if (done != nullptr) action.done = *done;
    t_.Add(std::move(action));
  }

  void Prune() {
    if (s_.publications.empty()) return;
    const int64_t newest = s_.publications.back().number;
    std::erase_if(s_.publications, [&](const Publication& publication) {
      return publication.done && publication.free && publication.number != newest;
    });
  }

 private:
  TrainerTransition& t_;
  TrainerState& s_;
};

/// Takes each event.
class TrainerEvents : public SourceEvents<TrainerState, TrainerAction> {
 public:
  explicit TrainerEvents(TrainerTransition& transition)
      : SourceEvents(transition), publications_(transition) {}
  using SourceEvents::operator();

  // --- The controller's messages ----------------------------------------------------------------------

  void operator()(const protocol::Welcome& welcome) {
    if (s_.ended || welcome.term < s_.term) return;
    LeavePlan();
    s_.term = welcome.term;
    s_.run = welcome.run;
    t_.Add(SendRegistration{});
    for (auto& publication : s_.publications) publications_.OfferAgain(publication);
    publications_.Prune();
  }

  void operator()(const protocol::Superseded& superseded) {
    Publication* publication = publications_.Find(superseded.version.number);
    if (publication == nullptr || publication->done) return;
    const Status reason =
        Error(Code::kCancelled, "version ", superseded.version.number,
              " was superseded by a later one before its update began; wait for the later one");
    publications_.End(*publication, reason);
    publications_.Prune();
  }

  void operator()(const StartOrder& start) {
    if (s_.ended || start.update.term != s_.term) return;
    if (start.update.epoch != s_.epoch) {  // Nobody waits for what will not be sent.
      const Status reason(Code::kCancelled,
                          "the trainer registered again, which ends the publication; publish again");
      return t_.Send(protocol::Failed{.update = start.update, .reason = reason});
    }
    Publication* publication = publications_.Find(start.version.number);
    if (publication == nullptr || !publications_.IsHeld(*publication)) {
      const Status reason =
          Error(Code::kCancelled, "version ", start.version.number,
                " is no longer held by this trainer; if that ends the update, publish again");
      return t_.Send(protocol::Failed{.update = start.update, .reason = reason});
    }
    if (std::exchange(publication->free, false)) t_.Add(HoldSources{publication->number});
    s_.sendings.push_back({.update = start.update,
                           .number = publication->number,
                           .destination = start.destination,
                           .part = start.part});
    t_.Add(BeginSending{start});
  }

  void operator()(const protocol::Abort& abort) {
    if (abort.update.term != s_.term) return;
    Stop([&](const Sending& sending) { return sending.update == abort.update; });
    s_.last_error = abort.reason;
    if (Publication* publication = publications_.Find(abort.version.number))
      publications_.Let(*publication, abort.reason);
  }

  void operator()(const protocol::Release& release) {
    if (release.update.term != s_.term) return;
    if (Publication* publication = publications_.Find(release.version.number))
      publications_.Let(*publication, Status::Ok());
  }

  void operator()(const protocol::Done& done) {
    Stop([&](const Sending& sending) { return sending.update == done.update; });
    if (!done.met_policy) s_.last_error = done.reason;
    Publication* publication = publications_.Find(done.version.number);
    if (publication == nullptr || publication->done) return;
    const Status outcome = done.met_policy ? Status::Ok() : done.reason;
    publications_.End(*publication, outcome, &done);
    publications_.Prune();
  }

  void operator()(const protocol::Lost& lost) {
    s_.last_error =
        lost.reason;  // What becomes of an update the controller decides: others may have the bytes.
  }

  // --- The data plane -----------------------------------------------------------------------------------

  void operator()(const TrainerPlanArrived& plan) {
    LeavePlan();  // Everything of older epochs is void.
    s_.epoch = plan.epoch;
    if (plan.run.number > s_.run.number) s_.run = plan.run;
  }

  void operator()(const SendPlanFailed& failed) {
    if (failed.epoch == s_.epoch && !s_.ended) s_.last_error = failed.reason;
    SourceEvents::operator()(failed);
  }

  void operator()(const SendEnded& ended) {
    if (!EndSending(s_.sendings, ended) || ended.status.ok()) return;  // The receiver tells what has come.
    s_.last_error = ended.status;
    t_.Send(protocol::Failed{ended.update, ended.path ? int64_t{ended.destination} : -1, ended.status});
  }

  void operator()(const SendFenced& fenced) {
    std::erase_if(s_.sendings, [&](const Sending& sending) { return sending.IsOf(fenced); });
    for (auto& publication : s_.publications) publications_.TryFree(publication);
    publications_.Prune();
  }

  void operator()(const SessionEnded& ended) {
    if (s_.ended) return;
    s_.ended = true;
    s_.end = ended.reason;
    s_.last_error = ended.reason;
    Stop(EverySending);
    for (auto& publication : s_.publications) publications_.End(publication, ended.reason);
    publications_.Prune();
  }

  // --- The user -----------------------------------------------------------------------------------------

  void operator()(const TrainerRegisterCalled&) {
    if (s_.ended) return t_.Add(AnswerTrainer{s_.end, {}});
    if (!s_.sendings.empty() || !std::ranges::all_of(s_.publications, &Publication::free)) {
      const Status reason(
          Code::kUnavailable,
          "an update is under way; call register after wait_sources of that update has returned");
      return t_.Add(AnswerTrainer{reason, {}});
    }
    // A version that was held is not in this memory.
    for (auto& publication : s_.publications) publication.hold = false;
    LeavePlan();  // It is void with the old registration.
    s_.registered = true;
    t_.Add(SendRegistration{});
    t_.Add(AnswerTrainer{});
  }

  void operator()(const PublishCalled& publish) {
    if (s_.ended) return t_.Add(AnswerTrainer{s_.end, {}});
    Status error;
    if (!s_.registered)
      error = {Code::kInvalidArgument, "nothing is registered; call register before publish"};
    if (publish.number <= s_.last_number) {
      error = Error(Code::kInvalidArgument, "version ", publish.number, " is not higher than the last one, ",
                    s_.last_number, "; give a higher number");
    }
    if (publish.number > protocol::kMaxVersionNumber)
      error = Error(Code::kInvalidArgument, "version ", publish.number,
                    " is too high; it must be an integer in [0, ", protocol::kMaxVersionNumber, "]");
    if (error.ok()) error = protocol::CheckLabel(publish.label);
    if (!error.ok()) return t_.Add(AnswerTrainer{error, {}});
    for (auto& publication : s_.publications) publication.hold = false;
    s_.last_number = publish.number;
    Publication& publication = s_.publications.emplace_back();
    publication.run = s_.run;
    publication.number = publish.number;
    publication.hold = publish.hold;
    publication.label = publish.label;
    publications_.Offer(publication);
    publications_.Prune();
    t_.Add(AnswerTrainer{Status::Ok(), protocol::VersionOf(s_.run, publish.number, publish.label)});
  }

  void operator()(const CancelCalled& cancel) {
    Publication* publication = publications_.Find(cancel.number);
    if (publication == nullptr || s_.ended || (publication->done && !publication->hold)) return;
    publication->hold = false;
    publication->cancelled = true;
    t_.Send(protocol::Cancel{cancel.number});
    if (publication->done) Stop([&](const Sending& sending) { return sending.number == cancel.number; });
  }

  /// The update ends here: from then on its sources may change, so no controller is offered it again. What is
  /// held is; its sources do not change.
  void operator()(const NoController& away) {
    Publication* publication = publications_.Find(away.number);
    if (publication == nullptr || s_.ended) return;
    // To the same controller, if it comes back in time to go on with this session.
    if (!publication->hold && !publication->done) t_.Send(protocol::Cancel{away.number});
    Stop([&](const Sending& sending) { return sending.number == away.number; });
    s_.last_error = away.reason;
    publications_.End(*publication, away.reason);
    publications_.Prune();
  }

 private:
  Publications publications_;
};

}  // namespace

std::vector<TrainerAction> Advance(TrainerState& state, const TrainerEvent& event) {
  TrainerTransition transition{state};
  std::visit(TrainerEvents(transition), event);
  return std::move(transition.actions);
}

}  // namespace weightcast::worker
