#include <algorithm>

#include "base/log.h"
#include "base/random.h"
#include "control/core.h"
#include "control/terms.h"

// One term ends and the next begins (docs/protocol.md, "Terms").
namespace weightcast::control {

/// Whether another process is here as this worker: the machine refuses it.
bool Core::IsTaken(const protocol::Hello& hello) const {
  return std::ranges::any_of(sessions_, [&](const auto& one) {
    const Session& session = *one.second;
    return session.stream != nullptr && session.hello.name == hello.name &&
           session.model->name == hello.model && session.hello.incarnation != hello.incarnation;
  });
}

Status Core::FollowTerm(const protocol::Hello& hello) {
  if (hello.term <= config_.term || hello.job != settings_.job || IsTaken(hello)) return Status::Ok();
  const auto number = NumberAfter(config_.term, hello.term);
  if (!number.ok()) {
    WC_LOG_LIMITED(kWarning, "refused ", protocol::ToString(hello.name), " of ", hello.host, ": ",
                   number.status().message());
    return number.status();
  }
  WC_LOG_LIMITED(kInfo, protocol::ToString(hello.name), " has followed term ", hello.term.number,
                 "; this controller, at ", config_.term.number, ", begins term ", *number,
                 ", and all workers join again");
  BeginTerm({.number = *number, .id = RandomId()});
  return Status::Ok();
}

/// As if this controller had started again. Streams that have not said Hello stay.
void Core::BeginTerm(const protocol::Term& term) {
  const TimePoint until = Clock::now() + config_.lease;
  for (auto& [id, session] : sessions_) {
    if (session->stream == nullptr) continue;
    kept_.Keep(session->hello, until);
    session->stream->Abort();
  }
  by_stream_.clear();
  sessions_.clear();
  timers_.clear();
  timer_times_.clear();
  models_.clear();
  config_.term = term;
  view_changed_ = true;
}

}  // namespace weightcast::control
