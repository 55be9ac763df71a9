#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "control/controller_machine.h"

namespace weightcast::control {

inline protocol::Hello RankHello(const std::string& engine, uint32_t rank, uint32_t world_size) {
  protocol::Hello hello;
  hello.name = {.role = protocol::Role::kInference, .engine = engine, .rank = rank};
  hello.world_size = world_size;
  return hello;
}
inline protocol::Hello ServesOf(const std::string& engine, Version version) {
  protocol::Hello hello = RankHello(engine, 0, 1);
  hello.state = protocol::EngineState::kServing;
  hello.version = version;
  return hello;
}

/// By their numbers in the table.
inline std::vector<SessionId> DestinationsOf(const MakePlan& plan) {
  std::vector<SessionId> destinations;
  for (const auto& engine : plan.engines)
    destinations.insert(destinations.end(), engine.begin(), engine.end());
  return destinations;
}

/// A worker as the tests of the controller play it.
struct SimulatedProcess {
  SessionId session = 0;
  protocol::Hello hello;
  bool alive = true;   ///< The process runs.
  bool linked = true;  ///< Its stream is whole.
  bool refused = false;
  Status refusal;
  bool shares = true;  ///< As an inference rank: gives to others.
  bool deaf = false;   ///< As an inference rank: writes to it are on their way, for now.
  bool stuck = false;  ///< Reads nothing more and says nothing more, but is not dead.
  std::deque<protocol::ControllerMessage> inbox;
  std::deque<protocol::WorkerMessage> outbox;

  // As an inference rank.
  bool grants = true;    ///< Answers a GrantRequest.
  bool switches = true;  ///< Answers a Commit.
  bool fences = true;    ///< Answers an Abort.
  std::optional<protocol::UpdateId> update;
  std::optional<protocol::UpdateId> closed;  ///< The last that was aborted.
  bool closed_lost = false;
  std::map<uint64_t, uint32_t> open;  ///< Grant -> trainer.
  std::set<uint32_t> arrived;
  bool asked = false, granted = false, ready = false, committed = false;
  uint32_t parts = 1;  ///< In which it takes an update ...
  uint32_t part = 0;   ///< ... and the one that it was asked for last.
  Version version, next;
  protocol::Landing landing = protocol::Landing::kInPlace;
  Version spare;  ///< What the spare buffer wholly holds, with shadow landing.
  protocol::EngineState state = protocol::EngineState::kJoining;
  uint32_t sources = 0;

  // As an engine's control.
  bool commands = true;  ///< Answers EngineCommand.
  bool paused = false, admitted = false;
  Version activated;
  Status cannot;  ///< Its answer to the next EngineCommand.
  std::vector<protocol::EngineCommand> orders;

  // As a trainer.
  uint32_t epoch = 0;
  protocol::Run run;
  bool writes = true;
  std::map<int64_t, bool> published;  ///< Number -> answered.
  std::vector<protocol::Done> done;
  std::vector<protocol::Lost> lost;
  std::set<protocol::UpdateId> over;
  int releases = 0, aborts = 0, stops = 0, superseded = 0;

  [[nodiscard]] bool IsTrainer() const { return hello.name.role == protocol::Role::kTrainer; }
  /// What its landing memory wholly holds.
  [[nodiscard]] Version Landed() const {
    if (IsTrainer()) return {};
    return landing == protocol::Landing::kShadow ? spare : version;
  }
  void SayRegister() {
    outbox.push_back(protocol::Register{.shards = {},
                                        .rules = {},
                                        .landing = landing,
                                        .state = state,
                                        .version = IsTrainer() ? Version{} : version,
                                        .shares = shares,
                                        .landed = Landed(),
                                        .newest = hello.newest,
                                        .parts = parts});
    if (!IsTrainer()) outbox.push_back(protocol::LandingMap{});
  }
  /// True when it costs a rank in place nothing although it had granted.
  bool HearAbort(const protocol::Abort& message) {
    ++aborts;
    if (IsTrainer()) return false;
    const bool in_place = landing == protocol::Landing::kInPlace;
    const bool had_granted = granted && update == message.update;
    const bool touched = had_granted && message.started;
    const bool lost_it = touched && (in_place || committed);
    if (closed != message.update) {  // Otherwise told again, now with a reason.
      closed = message.update;
      closed_lost = lost_it;
      open.clear();
      update.reset();
      asked = granted = ready = committed = false;
      if (lost_it) version = {};
      state = lost_it               ? protocol::EngineState::kFailed
              : version.number >= 0 ? protocol::EngineState::kServing
                                    : protocol::EngineState::kJoining;
    }
    if (fences)
      outbox.push_back(protocol::Aborted{.update = message.update, .lost = closed_lost, .landed = Landed()});
    return had_granted && !touched && in_place;
  }
  /// As an engine's control.
  void OnCommand(const protocol::EngineCommand& message) {
    orders.push_back(message);
    if (!commands) return;
    const Status status = std::exchange(cannot, Status::Ok());
    if (status.ok()) {
      if (message.command == protocol::Command::kPause) paused = true;
      if (message.command == protocol::Command::kActivate) activated = message.version;
      if (message.command == protocol::Command::kResume) paused = false;
      admitted = message.command == protocol::Command::kResume ||
                 (admitted && message.command != protocol::Command::kDrain);
    }
    outbox.push_back(protocol::EngineCommandResult{.order = message.order, .status = status});
  }
};

}  // namespace weightcast::control
