#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "protocol/messages.h"
#include "weightcast/status.h"
#include "weightcast/version.h"
#include "worker/machine_actions.h"
#include "worker/sendings.h"

/// A trainer's side of docs/protocol.md as a pure function: (state, event) -> state, actions. It has no
/// clock, thread or I/O; the runtime (worker/trainer.cc) and tests drive it alike.
namespace weightcast::worker {

/// One version that this trainer offers, until nothing more can become of it.
struct Publication {
  protocol::Run run;
  int64_t number = 0;
  bool hold = false;
  std::string label{};
  bool cancelled = false;
  bool release = false;  ///< The controller lets go of the sources; they are free once nothing is in flight.
  bool free = false;     ///< The user was told that the sources may change.
  bool done = false;     ///< The user was told the outcome.
  Status outcome;        ///< With `release`: what WaitSources says.
  friend bool operator==(const Publication&, const Publication&) = default;
};

struct TrainerState : SourceState {
  Status end;         ///< Why it has ended.
  protocol::Run run;  ///< Of versions published from now on.
  bool registered = false;
  int64_t last_number = -1;
  std::vector<Publication> publications;  ///< Ascending.
  Status last_error;
  friend bool operator==(const TrainerState&, const TrainerState&) = default;
};

// --- Events beside the controller's messages ------------------------------------------------------

struct TrainerPlanArrived {  ///< Stands for protocol::Plan.
  uint32_t epoch = 0;
  protocol::Run run;
};
struct TrainerRegisterCalled {};
struct PublishCalled {
  int64_t number = 0;
  bool hold = false;
  std::string label{};
};
struct CancelCalled {
  int64_t number = 0;
};
/// Who waits for this version has waited long enough for a controller.
struct NoController {
  int64_t number = 0;
  Status reason;
};

using TrainerEvent =
    std::variant<protocol::Welcome, protocol::Superseded, StartOrder, protocol::Stop, protocol::Abort,
                 protocol::Release, protocol::Done, protocol::Lost, TrainerPlanArrived, SendPlanReady,
                 SendPlanFailed, SendEnded, SendFenced, SessionEnded, TrainerRegisterCalled, PublishCalled,
                 CancelCalled, NoController>;

// --- Actions --------------------------------------------------------------------------------------

/// A held version goes to an engine that joined: WaitSources waits again.
struct HoldSources {
  int64_t number = 0;
  friend bool operator==(const HoldSources&, const HoldSources&) = default;
};
/// WaitSources of this version returns.
struct FreeSources {
  int64_t number = 0;
  Status status;
  friend bool operator==(const FreeSources&, const FreeSources&) = default;
};
/// Wait of this version returns: the controller's word, or `status` without one.
struct FinishUpdate {
  int64_t number = 0;
  Status status;
  std::optional<protocol::Done> done;
  friend bool operator==(const FinishUpdate&, const FinishUpdate&) = default;
};
/// Register and Publish: at once.
struct AnswerTrainer {
  Status status;
  Version version;
  friend bool operator==(const AnswerTrainer&, const AnswerTrainer&) = default;
};

using TrainerAction = std::variant<SendMessage, SendRegistration, BeginSending, StopSending, HoldSources,
                                   FreeSources, FinishUpdate, AnswerTrainer>;

/// Takes one event.
std::vector<TrainerAction> Advance(TrainerState& state, const TrainerEvent& event);

}  // namespace weightcast::worker
