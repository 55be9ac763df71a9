#pragma once

#include <string_view>
#include <utility>

#include "base/strings.h"
#include "control/machine_events.h"

namespace weightcast::control {

/// Where rules put the actions of one event, in order.
class Outbox {
 public:
  explicit Outbox(Actions& actions) : actions_(actions) {}

  void Add(Action action) { actions_.push_back(std::move(action)); }
  void Send(SessionId to, protocol::ControllerMessage message) {
    actions_.push_back(control::Send{to, std::move(message)});
  }
  void Arm(TimerKind kind, GroupId group, Duration after) {
    actions_.push_back(SetTimer{{kind, group}, after});
  }
  void Disarm(TimerKind kind, GroupId group = 0) { actions_.push_back(CancelTimer{{kind, group}}); }
  void ArmOrDisarm(bool wanted, TimerKind kind, GroupId group, Duration after) {
    wanted ? Arm(kind, group, after) : Disarm(kind, group);
  }
  template <typename... Parts>
  void Log(LogLevel level, const Parts&... parts) {
    LogAndCount({}, level, parts...);
  }
  /// `counter`: a string that stays valid for ever, as in docs/operations.md.
  template <typename... Parts>
  void LogAndCount(std::string_view counter, LogLevel level, const Parts&... parts) {
    actions_.push_back(Note{level, StrCat(parts...), counter});
  }
  /// Of a process that left, or was lost.
  void LogLoss(const Status& reason) {
    const bool left = reason.code() == Code::kCancelled;
    LogAndCount(left ? "control.workers_left" : "control.workers_lost",
                left ? LogLevel::kInfo : LogLevel::kWarning, reason.message());
  }

 private:
  Actions& actions_;
};

}  // namespace weightcast::control
