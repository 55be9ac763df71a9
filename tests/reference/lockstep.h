#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/strings.h"
#include "control/controller_machine.h"
#include "protocol/codec.h"
#include "tests/reference/controller_machine.h"

/// The controller's machine as it was before it kept counts and indices: simple, and slow in large clusters.
/// Both take the same events, and have to want the same things in the same order.
namespace weightcast::reference {

/// Without the rows of a Done, of which the machine lists the slowest alone.
inline std::string BytesOf(protocol::ControllerMessage message) {
  if (auto* done = std::get_if<protocol::Done>(&message)) {
    done->senders.clear();
    done->receivers.clear();
    done->routes.clear();
    done->bytes = done->compared = done->compared_ranks = 0;
  }
  return protocol::Encode(message);
}

/// A Start of many destinations as one for each.
inline std::vector<std::string> StartsOf(uint32_t to, const protocol::ControllerMessage& message) {
  std::vector<std::string> lines;
  if (const auto* start = std::get_if<protocol::Start>(&message)) {
    for (const protocol::DestinationGrant& grant : start->grants) {
      protocol::Start one = *start;
      one.grants = {grant};
      lines.push_back(StrCat("start ", to, " ", BytesOf(one)));
    }
  }
  return lines;
}

/// An action a line; a SendAll counts as the Sends that it stands for. The order of Starts is of no matter:
/// they come last.
template <typename Actions>
std::vector<std::string> LinesOf(const Actions& actions) {
  std::vector<std::string> lines;
  std::vector<std::string> all_starts;
  const auto add = [&](const auto& a) {
    if constexpr (requires { a.to.begin(); }) {
      const std::string message = BytesOf(a.message);
      for (const auto to : a.to) lines.push_back(StrCat("send ", to, " ", message));
    } else if constexpr (requires { a.message; }) {
      const std::vector<std::string> starts = StartsOf(a.to, a.message);
      all_starts.insert(all_starts.end(), starts.begin(), starts.end());
      if (starts.empty()) lines.push_back(StrCat("send ", a.to, " ", BytesOf(a.message)));
    } else if constexpr (requires { a.after; }) {
      lines.push_back(
          StrCat("set ", static_cast<int>(a.timer.kind), " ", a.timer.group, " ", Seconds(a.after)));
    } else if constexpr (requires { a.timer; }) {
      lines.push_back(StrCat("cancel ", static_cast<int>(a.timer.kind), " ", a.timer.group));
    } else if constexpr (requires { a.engines; }) {
      std::string line = StrCat("plan ", a.epoch, a.from_engines ? " from engines" : "");
      for (const auto session : a.sources) line += StrCat(" ", session);
      for (const auto& engine : a.engines) {
        line += " |";
        for (const auto session : engine) line += StrCat(" ", session);
      }
      lines.push_back(std::move(line));
    } else if constexpr (requires { a.epoch; }) {
      lines.push_back(StrCat("hand out ", a.epoch));
    } else if constexpr (requires { a.text; }) {
      lines.push_back(StrCat("note ", static_cast<int>(a.level), " ", a.text, " ", a.counter));
    } else if constexpr (requires { a.reason; }) {
      lines.push_back(
          StrCat("refuse ", a.session, " ", static_cast<int>(a.reason.code()), a.reason.message()));
    } else {
      lines.push_back(StrCat("forget ", a.session));
    }
  };
  for (const auto& action : actions) std::visit(add, action);
  std::ranges::sort(all_starts);
  lines.insert(lines.end(), all_starts.begin(), all_starts.end());
  return lines;
}

inline Event EventOf(const control::Event& event) {
  return std::visit(
      [](const auto& e) -> Event {
        if constexpr (requires { e.hello; }) {
          return Attached{e.session, e.hello};
        } else if constexpr (requires { e.message; }) {
          return Said{e.session, e.message};
        } else if constexpr (requires { e.timer; }) {
          return TimerFired{{static_cast<TimerKind>(e.timer.kind), e.timer.group}};
        } else if constexpr (requires { e.concerned; }) {
          return PlanFailed{e.epoch, e.reason, e.concerned};
        } else if constexpr (requires { e.epoch; }) {
          return PlanMade{e.epoch};
        } else if constexpr (requires { e.reason; }) {
          return Gone{e.session, e.reason};
        } else if constexpr (std::is_same_v<std::decay_t<decltype(e)>, control::Resumed>) {
          return Resumed{e.session};
        } else {
          return StreamBroken{e.session};
        }
      },
      event);
}

inline MachineConfig ConfigOf(const control::MachineConfig& c) {
  return {.term = c.term,
          .job = c.job,
          .together = c.together,
          .min_engines = c.min_engines,
          .lease = c.lease,
          .timeout = c.timeout,
          .grant_timeout = c.grant_timeout,
          .commit_timeout = c.commit_timeout,
          .join_timeout = c.join_timeout};
}

/// What the reference wants done after this event, as lines.
inline std::vector<std::string> LinesAfter(const control::MachineConfig& config, MachineState& state,
                                           const control::Event& event) {
  Actions actions;
  Step(ConfigOf(config), state, EventOf(event), actions);
  return LinesOf(actions);
}

}  // namespace weightcast::reference
