#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "protocol/messages.h"
#include "worker/machine_actions.h"

namespace weightcast::worker {

/// The sending of one part of an update to one destination, as its source's machine keeps it until it is
/// fenced.
struct Sending {
  protocol::UpdateId update;
  int64_t number = 0;  ///< Of the version.
  uint32_t destination = 0;
  uint32_t part = 0;
  bool quiet = false;  ///< Stopped or over: nothing is said of it; it waits until nobody reads for it.

  /// Of SendEnded and SendFenced.
  template <typename Event>
  [[nodiscard]] bool IsOf(const Event& event) const {
    return update == event.update && destination == event.destination && part == event.part;
  }
  friend bool operator==(const Sending&, const Sending&) = default;
};

constexpr bool EverySending(const Sending&) { return true; }

/// Stops those that match; `then` is called for each that was not quiet.
template <typename Action, typename Match, typename Then = void (*)(const Sending&)>
void StopSendings(
    std::vector<Sending>& sendings, std::vector<Action>& actions, const Match& match,
    const Then& then = [](const Sending&) {}) {
  for (Sending& sending : sendings) {
    if (!match(sending) || std::exchange(sending.quiet, true)) continue;
    actions.push_back(StopSending{sending.update, sending.destination});
    then(sending);
  }
}

/// What has ended is quiet; false if it was so already.
inline bool EndSending(std::vector<Sending>& sendings, const SendEnded& ended) {
  const auto at =
      std::ranges::find_if(sendings, [&](const Sending& one) { return one.IsOf(ended) && !one.quiet; });
  if (at == sendings.end()) return false;
  return at->quiet = true;
}

/// What a machine that sends knows of its session and of its plan.
struct SourceState {
  bool ended = false;  ///< The session is over for good.
  protocol::Term term;
  uint32_t epoch = 0;  ///< Of the plan by which it sends; 0: none.
  bool prepared = false;
  std::vector<Sending> sendings;
  friend bool operator==(const SourceState&, const SourceState&) = default;
};

/// Takes the events that mean the same to all sources.
template <typename State, typename Action>
class SourceEvents {
 public:
  explicit SourceEvents(Transition<State, Action>& transition) : t_(transition), s_(transition.state) {}

  void operator()(const protocol::Stop& stop) {
    Stop([&](const Sending& sending) {
      return sending.update == stop.update && sending.destination == stop.destination;
    });
  }
  void operator()(const SendPlanReady& prepared) {
    if (prepared.epoch != s_.epoch || s_.ended) return;
    s_.prepared = true;
    t_.Send(protocol::Prepared{.epoch = s_.epoch});
  }
  void operator()(const SendPlanFailed& failed) {
    if (failed.epoch != s_.epoch || s_.ended) return;
    t_.Send(protocol::Failed{.update = {.term = s_.term, .epoch = s_.epoch},
                             .destination = failed.destination,
                             .reason = failed.reason});
  }

 protected:
  template <typename Match>
  void Stop(const Match& match) {
    StopSendings(s_.sendings, t_.actions, match);
  }
  /// Nothing is sent by it any more.
  void LeavePlan() {
    Stop(EverySending);
    s_.epoch = 0;
    s_.prepared = false;
  }

  Transition<State, Action>& t_;
  State& s_;
};

}  // namespace weightcast::worker
