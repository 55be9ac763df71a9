#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "protocol/messages.h"
#include "weightcast/status.h"
#include "weightcast/version.h"
#include "worker/machine_actions.h"

/// An inference rank's side of docs/protocol.md as a pure function: (state, event) -> state, actions. It has
/// no clock, thread or I/O; the runtime (worker/inference_loop.cc) and tests drive it alike.
namespace weightcast::worker {

/// Where the user stands between Begin and Finish.
enum class UserPhase : uint8_t {
  kOutside,
  kBegun,      ///< Paused: live tensors may be written.
  kReceived,   ///< Receive returned: the engine post-processes.
  kFinishing,  ///< Finish was called; not yet told to serve.
  kFinished,   ///< Told to serve while no Finish was waiting: the next one returns at once.
};

/// The blocking call that waits for its answer. There is at most one.
enum class UserCall : uint8_t { kNone, kReceive, kFinish, kWait, kAbort, kSuspend };

/// How far the rank is in an update.
enum class Step : uint8_t {
  kNone,
  kRequested,  ///< Asked for grants; in_place waits for Begin.
  kOpening,    ///< The runtime opens grants.
  kWriting,    ///< Granted.
  kFencing,    ///< Every byte is there; the grants are being revoked.
  kVerifying,  ///< Checksums are being compared.
  kReady,
  kSwitching,  ///< The user's Receive calls the engine and copies spare buffers.
  kSwitched,   ///< The live tensors are of the new version; the engine post-processes.
  kCommitted,  ///< Waits for Serve.
  kAborting,   ///< The grants are being revoked.
};

/// "writing"
std::string_view NameOf(Step step);

/// Where a part of an update stands that is there at every rank of the engine, but for the last.
enum class Handover : uint8_t {
  kNone,
  kDue,         ///< The next Receive says that it is there.
  kWithEngine,  ///< Receive has said so; with the next one the engine has taken it over.
};

struct InferenceState {
  protocol::WorkerName self;  ///< To tell its own engine's ranks from others.
  bool verify = false;        ///< Compare checksums or digests before Ready.
  bool compares = false;      ///< Digests: the sources are asked for theirs.
  bool registered = false;
  protocol::Landing landing = protocol::Landing::kInPlace;
  bool shares = true;        ///< Others may read what has landed here.
  bool runs_switch = false;  ///< The switch is more than to go on: a copy, or a call of the engine.
  uint32_t parts = 1;        ///< In which an update comes.
  bool suspended = false;    ///< Nothing is registered until the engine wakes.
  Version asleep;            ///< What was served before.
  bool controlled = false;   ///< The engine has an EngineControl: a new controller must wait for it.

  bool ended = false;  ///< The session is over for good, because of `end`.
  Status end;
  protocol::Term term;
  uint32_t epoch = 0;
  bool prepared = false;

  protocol::EngineState state = protocol::EngineState::kJoining;
  Version newest;  ///< That was ever served.
  Version served;  ///< What version() says: none unless the live tensors are wholly of it and may be read.
  bool failed = false;  ///< The live tensors are of no version since an update was aborted.
  UserPhase user = UserPhase::kOutside;
  UserCall call = UserCall::kNone;
  bool cut_short = false;  ///< A Wait has returned in kFinishing: the engine is not paused any more.

  // The update at hand, unless `step` is kNone.
  Step step = Step::kNone;
  protocol::UpdateId update;
  Version version;
  uint32_t part = 0;                    ///< That is asked for or came last.
  Handover handover = Handover::kNone;  ///< Of the part before.
  Version before;                       ///< What the live tensors hold as long as they are not touched.
  bool touched = false;                 ///< The live tensors may have been written.
  bool commit = false;                  ///< Commit has come.
  uint64_t bytes = 0;
  double seconds = 0;
  std::vector<protocol::SourceBytes> sources;
  uint64_t compared = 0;         ///< Tensors whose digests are those of their sources.
  bool abort = false;            ///< To be aborted as soon as nobody touches the memory any more.
  bool closed_silently = false;  ///< The call waits on; a later Abort of the `closed` update has the reason.
  bool fenced = false;           ///< While it is aborted: nothing can land any more.
  bool uncertain = false;   ///< It failed here: whether sources know the grants is for the controller to say.
  bool undecided = false;   ///< A source was lost: whether there is another is for the controller to say.
  bool abort_told = false;  ///< The user's call has had its answer.
  bool tell_aborted = false;  ///< The controller waits for Aborted.
  Status abort_reason;
  std::optional<protocol::GrantRequest> next;  ///< Came while this one was still being aborted.

  protocol::UpdateId closed;  ///< The newest update that is over here ...
  bool closed_lost = false;   ///< ... and whether it left the live tensors without a version.
  bool retried = false;       ///< It was, or is to be, aborted for another attempt: calls wait on.
  Status pending_error;       ///< Of an abort between two calls of the phases; told to the next.
  Status loss;                ///< Of a worker without which there will be no update.
  bool loss_told = false;
  Status last_error;

  // The landing memory as a source for others.
  Version landed;           ///< What it wholly holds, of a receive that ended well; none once granted again.
  bool lent = false;        ///< Others may be reading it.
  bool reclaiming = false;  ///< They were asked to let go of it.

  [[nodiscard]] bool IsCurrent(const protocol::UpdateId& of, Step at) const {
    return step == at && update == of;
  }
  /// No part of the update at hand is left to be asked for.
  [[nodiscard]] bool IsLastPart() const { return part + 1 == parts; }
  friend bool operator==(const InferenceState&, const InferenceState&) = default;
};

// --- Events beside the controller's messages ------------------------------------------------------

struct PlanArrived {  ///< Stands for protocol::Plan.
  uint32_t epoch = 0;
};
struct PlanReady {  ///< Table read, every source connected.
  uint32_t epoch = 0;
  std::vector<std::string> connections = {};  ///< Of protocol::Prepared.
};
struct PlanFailed {
  uint32_t epoch = 0;
  Status reason;
};
struct GrantsOpened {
  protocol::UpdateId update;
  std::vector<protocol::SourceGrant> grants;
};
struct OpenFailed {  ///< None is open.
  protocol::UpdateId update;
  Status reason;
  int64_t source = -1;  ///< Its number in the table, when one is to blame.
};
struct Arrived {  ///< Every transfer of every source.
  protocol::UpdateId update;
  uint64_t bytes = 0;
  double seconds = 0;
  std::vector<protocol::SourceBytes> sources = {};
};
struct SourceLost {  ///< A source's connection ended before all of it had come.
  protocol::UpdateId update;
  Status reason;
  int64_t source = -1;  ///< Its number in the table.
};
struct GrantsFenced {
  protocol::UpdateId update;
};
/// A stopped writer holds the spare buffer of an aborted update. It is kept apart until its fence is over;
/// another one is registered from here on (none, if the rank goes to sleep).
struct SpareSetAside {
  protocol::UpdateId update;
};
struct Verified {
  protocol::UpdateId update;
  Status status;
  uint64_t compared = 0;  ///< Tensors, by digest.
};
/// The engine's error says that nothing was changed.
struct SwitchRun {
  protocol::UpdateId update;
  Status status = {};
  bool changed = false;  ///< The error comes after live tensors were changed.
};
struct MemoryLent {};  ///< Others may read the landing memory from here on ...
struct MemoryFree {};  ///< ... and nobody does any more.
struct RegisterCalled {
  protocol::Landing landing = protocol::Landing::kInPlace;
  bool same_memory = false;  ///< The same bytes at the same addresses: what is served stays served.
  bool shares = true;
  bool runs_switch = false;  ///< Always with shadow landing.
  uint32_t parts = 1;        ///< Of an update; several are landed in place.
};
struct BeginCalled {};
struct ReceiveCalled {};
struct CommitCalled {};
struct FinishCalled {
  bool commits = true;  ///< Not: Commit was called before.
};
struct AbortCalled {};
struct SuspendCalled {};
struct WaitCalled {};        ///< Begin, Receive and Finish in one.
struct CallExpired {         ///< The deadline of the blocking call has passed, or ...
  bool interrupted = false;  ///< its caller was interrupted, or ...
  Status away = {};          ///< the controller is away, for too long (why).
};

using InferenceEvent =
    std::variant<protocol::Welcome, protocol::Controlled, protocol::GrantRequest, protocol::Commit,
                 protocol::Serve, protocol::Abort, protocol::Lost, PlanArrived, PlanReady, PlanFailed,
                 GrantsOpened, OpenFailed, Arrived, SourceLost, GrantsFenced, SpareSetAside, Verified,
                 SwitchRun, SessionEnded, MemoryLent, MemoryFree, RegisterCalled, BeginCalled, ReceiveCalled,
                 CommitCalled, FinishCalled, AbortCalled, SuspendCalled, WaitCalled, CallExpired>;

// --- Actions --------------------------------------------------------------------------------------

/// Asks others to let go of the landing memory; answered by MemoryFree.
struct ReclaimMemory {
  friend bool operator==(const ReclaimMemory&, const ReclaimMemory&) = default;
};
/// Answered by GrantsOpened or OpenFailed.
struct OpenGrants {
  protocol::UpdateId update;
  uint32_t part = 0;
  friend bool operator==(const OpenGrants&, const OpenGrants&) = default;
};
/// Answered by GrantsFenced, when nothing can land any more.
struct RevokeGrants {
  protocol::UpdateId update;
  friend bool operator==(const RevokeGrants&, const RevokeGrants&) = default;
};
struct VerifyChecksums {
  protocol::UpdateId update;
  friend bool operator==(const VerifyChecksums&, const VerifyChecksums&) = default;
};
/// Lets the user's thread call the engine and copy; it answers with SwitchRun.
struct RunSwitch {
  protocol::UpdateId update;
  friend bool operator==(const RunSwitch&, const RunSwitch&) = default;
};
/// Ends the user's call. Every call gets exactly one; Register and Begin at once.
struct AnswerCall {
  Status status;
  Version version;
  uint32_t part = 0;  ///< Receive: that is there.
  friend bool operator==(const AnswerCall&, const AnswerCall&) = default;
};

using InferenceAction = std::variant<SendMessage, SendRegistration, ReclaimMemory, OpenGrants, RevokeGrants,
                                     VerifyChecksums, RunSwitch, AnswerCall>;

using InferenceTransition = Transition<InferenceState, InferenceAction>;

/// Takes one event. A call may only come when the one before was answered. The new state (above all `served`)
/// must be visible to others before any action is carried out: an action may let the live tensors change.
std::vector<InferenceAction> Advance(InferenceState& state, const InferenceEvent& event);

/// Whether the live tensors are wholly of the version that is served and stay so until the user's next call.
Status CheckReadable(const InferenceState& state);

/// The version that others may read from the landing memory now; none (-1) while it is on its way out.
Version VersionToLend(const InferenceState& state);

}  // namespace weightcast::worker
