#include "control/controller_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "base/strings.h"

namespace weightcast::control {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(20);
constexpr Duration kMaxBackoff = std::chrono::seconds(1);
/// A stream that is not welcomed for so long is given up for another try.
constexpr Duration kLeastAttempt = std::chrono::seconds(2);
/// Until the first reminder of a missing controller; the time until the next one doubles, up to ...
constexpr Duration kFirstReminder = std::chrono::seconds(15);
constexpr Duration kRarestReminder = std::chrono::hours(1);

}  // namespace

ControllerSearch::ControllerSearch(const ClientOptions& options, Token token, TimePoint now)
    : settings_(options.settings),
      member_(MemberOf(options.hello.name)),
      patient_(options.patient),
      absence_(options.absence),
      token_(std::move(token)),
      good_token_(token_),
      until_(now),
      backoff_(kFirstBackoff) {
  BeginSearch(Error(Code::kUnavailable, "no answer yet from the controller at ", settings_.controller,
                    "; check that it runs and the address"),
              now);
}

void ControllerSearch::BeginSearch(const Status& reason, TimePoint now) {
  since_ = now;
  remind_ = now + kFirstReminder;
  absence_->Begin(since_, reason);
}

TimePoint ControllerSearch::end() const {
  return ever_found_ || patient_ ? TimePoint::max() : since_ + settings_.join_timeout;
}

TimePoint ControllerSearch::next() const { return std::min(until_, end()); }

Status ControllerSearch::CheckOver(TimePoint now) const {
  if (now < end()) return Status::Ok();
  const std::string last = reason_.ok() ? std::string() : StrCat("; last: ", reason_.message());
  return Error(Code::kTimedOut, "no controller at ", settings_.controller, " for ",
               Seconds(settings_.join_timeout), " s",
               last.empty() ? "; check that it runs, and its address" : last);
}

Result<stream::RoleToken> ControllerSearch::BeginAttempt(TimePoint now) {
  phase_ = Phase::kAttempt;
  until_ = now + std::max(kLeastAttempt, settings_.lease);
  return token_.ForWorker(member_);
}

Status ControllerSearch::OnStreamEnded(const Status& reason, TimePoint now) {
  if (reason.code() != Code::kPermission) {
    refused_since_.reset();
    // Where a controller was before, something else may have its port for a while.
    return reason.code() == Code::kProtocol && (found() || !ever_found_) ? reason : Status::Ok();
  }
  auto fresh = ReadTokenAgain(token_);
  const bool other = fresh.ok() && !(*fresh == token_) && fresh->ForWorker(member_).ok();
  if (ever_found_ || other) {
    token_ = other ? std::move(*fresh) : good_token_;
    if (!refused_since_) refused_since_ = now;
    if (now < *refused_since_ + settings_.join_timeout) return Status::Ok();
  }
  return Error(Code::kPermission, reason.message(), " (this process's token is from ", token_.origin(), ")");
}

bool ControllerSearch::Fail(Status reason, TimePoint now) {
  const bool first = reason_.ok();
  WaitNow(std::move(reason), now);
  if (!first) Remind(now);
  return first;
}

void ControllerSearch::WaitNow(Status reason, TimePoint now) {
  reason_ = std::move(reason);
  absence_->Begin(since_, reason_);
  phase_ = Phase::kPause;
  until_ = now + backoff_;
  backoff_ = std::min({2 * backoff_, kMaxBackoff, std::max(kFirstBackoff, settings_.lease / 4)});
}

/// A user who looks at what seems to hang is to see what it waits for.
void ControllerSearch::Remind(TimePoint now) {
  if (now < remind_) return;
  remind_ = now + std::min(now - since_, kRarestReminder);
  WC_LOG(kWarning, "still no controller at ", settings_.controller, ", for ",
         std::lround(Seconds(now - since_)), " s now; last: ", reason_.message());
}

void ControllerSearch::OnFound(TimePoint now) {
  phase_ = Phase::kFound;
  ever_found_ = true;
  backoff_ = kFirstBackoff;
  reason_ = Status::Ok();
  refused_since_.reset();
  good_token_ = token_;
  absence_->End();
  // Who was reminded that there is none is told.
  if (now < since_ + kFirstReminder) return;
  WC_LOG(kWarning, "the controller at ", settings_.controller, " has answered, after ",
         std::lround(Seconds(now - since_)), " s");
}

void ControllerSearch::OnLost(Status reason, TimePoint now) {
  BeginSearch(reason, now);
  WaitNow(std::move(reason), now);
}

}  // namespace weightcast::control
