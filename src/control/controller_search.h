#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "control/absence.h"
#include "control/client.h"
#include "control/token.h"
#include "stream/role.h"
#include "stream/token.h"
#include "weightcast/clock.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// A worker's search for its controller: one attempt after another, from the start, and from each loss of a
/// controller that was found. Decides when the next attempt begins and ends, with which token, and when the
/// search is over. Tells the worker's Absence and the log. Makes no stream and reads no clock. One thread's.
class ControllerSearch {
 public:
  /// The options' absence must not be null.
  ControllerSearch(const ClientOptions& options, Token token, TimePoint now);

  [[nodiscard]] bool found() const { return phase_ == Phase::kFound; }
  [[nodiscard]] bool attempting() const { return phase_ == Phase::kAttempt; }
  [[nodiscard]] bool ever_found() const { return ever_found_; }
  /// Begin of this search.
  [[nodiscard]] TimePoint since() const { return since_; }
  /// Of the last failure; ok if there was none yet, and once found.
  [[nodiscard]] const Status& reason() const { return reason_; }

  /// While not found: when the pause, the attempt or the whole search ends.
  [[nodiscard]] TimePoint next() const;
  /// Not ok when the first search has taken join_timeout: it is over.
  [[nodiscard]] Status CheckOver(TimePoint now) const;

  /// A pause is over. The token to try. Errors: those of Token::ForWorker.
  Result<stream::RoleToken> BeginAttempt(TimePoint now);
  /// A stream was not opened, or has ended, for `reason`. Not ok when the search is over: further attempts
  /// would fail as well. After a refused token the next attempt takes the token that is in the file by now,
  /// or else the one that was good before.
  Status OnStreamEnded(const Status& reason, TimePoint now);
  /// The attempt has failed; a pause begins, twice as long as the last one, up to a limit. True if this is
  /// the first failure, and no controller was found before it. The log tells of later ones, ever less often.
  bool Fail(Status reason, TimePoint now);
  void OnFound(TimePoint now);
  /// What was found is lost: another search begins, with the shortest pause.
  void OnLost(Status reason, TimePoint now);

 private:
  enum class Phase : uint8_t { kPause, kAttempt, kFound };

  void BeginSearch(const Status& reason, TimePoint now);
  void WaitNow(Status reason, TimePoint now);
  void Remind(TimePoint now);
  /// When the search is over, unless it finds one.
  [[nodiscard]] TimePoint end() const;

  const Settings settings_;
  const stream::Member member_;
  const bool patient_;
  const std::shared_ptr<Absence> absence_;

  Token token_;
  Token good_token_;                        ///< The last that a controller was found with.
  std::optional<TimePoint> refused_since_;  ///< Since then no stream has ended for anything but the token.

  Phase phase_ = Phase::kPause;
  TimePoint until_;   ///< End of a pause or an attempt.
  Duration backoff_;  ///< The next pause.
  bool ever_found_ = false;
  TimePoint since_;
  TimePoint remind_;
  Status reason_;
};

}  // namespace weightcast::control
