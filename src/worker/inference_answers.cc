#include "worker/inference_answers.h"

#include <array>
#include <string_view>
#include <utility>

#include "base/strings.h"

namespace weightcast::worker {

void CallAnswers::Answer(Status status, Version version, uint32_t part) {
  s_.call = UserCall::kNone;
  t_.Add(AnswerCall{.status = std::move(status), .version = std::move(version), .part = part});
}

void CallAnswers::AnswerError(Status status) {
  if (s_.call == UserCall::kWait && s_.user == UserPhase::kBegun) s_.user = UserPhase::kOutside;
  s_.cut_short = s_.call == UserCall::kWait && s_.user == UserPhase::kFinishing;
  Answer(std::move(status));
}

void CallAnswers::TellLoss() {
  const bool waiting = s_.call == UserCall::kReceive || s_.call == UserCall::kWait;
  // Within an update Abort will say it, or the update does without the lost one.
  if (!waiting || s_.step != Step::kNone || s_.retried || s_.loss.ok() || s_.loss_told) return;
  s_.loss_told = true;
  AnswerError(s_.loss);
}

bool CallAnswers::RefuseCall() {
  if (s_.ended) {
    Answer(s_.end);
    return true;
  }
  if (!s_.registered) {
    Answer({Code::kInvalidArgument, s_.suspended ? "this rank is suspended; call resume first"
                                                 : "nothing is registered; call register first"});
    return true;
  }
  return false;
}

Status CallAnswers::TooLate(const CallExpired& expired) const {
  std::string what;
  switch (s_.step) {
    case Step::kNone:
    case Step::kRequested:
      what = s_.part > 0
                 ? "the controller did not begin the next group in time (see `weightcast info --controller`)"
             : s_.prepared ? "no newer version was published in time"
                           : "the plan was not prepared in time (see `weightcast info --controller`)";
      break;
    case Step::kCommitted:
      what =
          "the other ranks of the engine have not all switched in time (see `weightcast info --controller`)";
      break;
    case Step::kReady:
      what = s_.IsLastPart() ? "this rank has every byte, but others are not ready in time (see `weightcast "
                               "info --controller`)"
                             : "this rank has the group, but other ranks of its engine have not (see "
                               "`weightcast info --controller`)";
      break;
    case Step::kVerifying:
      what = "the checksums were not compared in time";
      break;
    case Step::kAborting:
      if (!s_.fenced)
        what = "a source (if stopped, this rank's log names it) may still write to this rank's memory";
      else if (s_.lent)
        what = "another engine still reads this rank's memory";
      else
        what = "the controller has not said in time how the update continues";
      if (!s_.abort_reason.ok()) what += StrCat("; the update ended because of: ", s_.abort_reason.message());
      break;
    default:
      what = "not every byte arrived in time (see `weightcast info --controller`)";
  }
  if (!s_.loss.ok()) what += StrCat("; ", s_.loss.message());
  if (s_.step == Step::kAborting && (!s_.fenced || s_.lent))
    return Error(Code::kFenced, what, "; keep the engine paused, and abort");
  static constexpr std::array<std::string_view, 6> kAgain = {
      "", "; receive again", "; finish again", "; wait again", "; abort again", "; suspend again"};
  if (expired.interrupted)
    return Error(Code::kCancelled, "this call was interrupted by a signal or by the caller: ", what,
                 kAgain[static_cast<size_t>(s_.call)]);
  if (!expired.away.ok()) return expired.away;
  return Error(Code::kTimedOut, what, kAgain[static_cast<size_t>(s_.call)]);
}

}  // namespace weightcast::worker
