#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weightcast/clock.h"
#include "weightcast/device.h"
#include "weightcast/digest.h"
#include "weightcast/engine_state.h"
#include "weightcast/registration.h"
#include "weightcast/status.h"
#include "weightcast/version.h"

namespace weightcast {

/// What trainers and inference ranks have in common.
struct WorkerOptions {
  std::string controller;   ///< "host:port"; empty: the setting `controller`.
  uint32_t rank = 0;        ///< Among the trainers, or within the engine.
  uint32_t world_size = 1;  ///< How many trainers, or ranks of the engine, there are.
  std::string model = "policy";
  /// Models that are updated together or not at all, such as a policy and its draft: model → how many ranks
  /// of this kind it has (trainers; inference: ranks of this engine). Everybody names the same models. All
  /// publish the same numbers. Empty: the model is updated by itself. See docs/engines.md.
  std::map<std::string, uint32_t> commit_group{};
  std::string engine;                           ///< Inference only: the engine's name.
  std::map<std::string, std::string> settings;  ///< Name → text; above the environment. See docs/settings.md.
  /// Looked at about ten times a second inside every call of this worker that waits for others, on the
  /// calling thread: true ends that wait with kCancelled. May be empty.
  std::function<bool()> interrupted;
  /// Calls wait for a controller without limit: the first one for join_timeout and all for controller_timeout
  /// otherwise. For programs that a supervisor ends.
  bool patient = false;
};

/// How one sender or receiver of an update fared.
struct RankStats {
  std::string name;  ///< "trainer 0", "engine rollout-1 rank 0"
  uint64_t bytes = 0;
  double seconds = 0;  ///< From a receiver's grant until the last byte was there; of a sender, its slowest.
  /// Receivers with the setting `compare`: tensors whose digests are those of their sources.
  uint64_t compared = 0;
};
/// All that went from one source to one inference rank.
struct RouteStats {
  std::string sender;
  std::string receiver;
  uint64_t bytes = 0;
  double seconds = 0;  ///< From the receiver's grant until the last byte was there.
};
struct EngineStats {
  std::string engine;
  bool committed = false;
  std::string reason;  ///< Why not.
  int64_t rank = -1;   ///< The rank of the engine that caused it; -1: none of its ranks did.
};
struct UpdateStats {
  Version version;
  double seconds = 0;  ///< From the first grant request until every rank was ready.
  uint64_t bytes = 0;  ///< Received by all ranks together.
  // Of more than 32, the 32 slowest. Update::Explain tells of more.
  std::vector<RankStats> senders;
  std::vector<RankStats> receivers;
  std::vector<RouteStats> routes;
  std::vector<EngineStats> engines;
};

/// One published version on its way. Copies of the shared pointer name the same update. Thread safe.
/// A wait that ends because there is no controller (kUnavailable, after controller_timeout) ends the update
/// here.
class Update {
 public:
  virtual ~Update() = default;
  [[nodiscard]] virtual Version version() const = 0;
  /// Returns when the sources may change: every rank of every engine has its bytes, or the update is
  /// over. The error is the update's, or kTimedOut for the waiting alone.
  virtual Status WaitSources(TimePoint deadline) = 0;
  /// Returns when the update is committed by the policy's measure. An abort's message names engine or
  /// rank and the reason.
  virtual Result<UpdateStats> Wait(TimePoint deadline) = 0;
  /// How each engine fared, also in an update that was not committed. Empty until the controller has
  /// ended it.
  [[nodiscard]] virtual std::vector<EngineStats> Engines() const = 0;
  /// What it took and why, as the controller saw it: JSON, an array of at most one object (docs/explain.md).
  /// Empty until it is over, and when the controller has forgotten it. Asks the controller.
  [[nodiscard]] virtual Result<std::string> Explain(TimePoint deadline) const = 0;
  /// Aborts it if it is not being committed yet.
  virtual void Cancel() = 0;
};

struct EngineStatus {
  std::string name;
  uint64_t incarnation = 0;  ///< Of its rank 0: another once that process was started again; 0: not here.
  EngineState state = EngineState::kJoining;
  Version version;
  std::string last_error;
};

/// How long published bytes stay unchanged.
enum class Hold : uint8_t {
  kUntilReady,  ///< Until WaitSources returns.
  kUntilNext,   ///< Until the next Publish, whatever WaitSources says: engines that join meanwhile get them.
};

/// A trainer rank. Thread safe; calls block only as said.
class Trainer {
 public:
  /// Attaches to the controller; blocks until accepted, refused or the join time-out.
  static Result<std::unique_ptr<Trainer>> Connect(WorkerOptions options);
  virtual ~Trainer() = default;
  /// Registers the shards of this rank. Returns when the memory is registered; planning goes on in the
  /// background, and Publish and Wait return its errors.
  virtual Status Register(Registration registration, SourceOptions options = {}) = 0;
  /// Offers the present bytes of all shards as `number`; returns at once. The shards must not change
  /// until WaitSources. Numbers rise; a lower one after a restart belongs to a new run.
  /// All trainers say the same `hold`. `label`: Version::label, of trainer 0; kInvalidArgument if it is
  /// longer than 256 bytes or has control characters.
  /// `streams`: no shard is read before what they hold now is over; an update that is sent meanwhile waits.
  /// kInvalidArgument while one is captured into a CUDA graph. Recording them may block in the driver.
  virtual Result<std::shared_ptr<Update>> Publish(int64_t number, Hold hold = Hold::kUntilReady,
                                                  std::string label = {},
                                                  std::span<const StreamRef> streams = {}) = 0;
  /// Says that `number` comes soon, so that engines make room for it meanwhile: nothing is read before
  /// Publish(number, Hold::kUntilReady, "", streams), whose `hold` and `label` are those given here. Returns
  /// at once what that Publish returns, too. Until then another number is kInvalidArgument; Cancel takes the
  /// announcement back. An engine with in_place landing is paused from its grant on, and the time limits of
  /// the update run from here.
  virtual Result<std::shared_ptr<Update>> Announce(int64_t number, Hold hold = Hold::kUntilReady,
                                                   std::string label = {}) = 0;
  /// The digests of the present bytes of all shards that are not declared, in the order of the registration
  /// (docs/digest.md). Reads them on the calling thread, at memory speed; they must not change meanwhile.
  /// Other calls of this trainer wait until it returns. kCancelled: interrupted, as looked at after each
  /// shard.
  virtual Result<Digests> Digest() = 0;
  /// Asks the controller; waits while it is unreachable, at most controller_timeout (0: twice the lease).
  virtual Result<std::vector<EngineStatus>> Engines() = 0;
  /// The connections of this rank, a line each.
  [[nodiscard]] virtual std::vector<std::string> ConnectionMap() const = 0;
  /// Graceful shutdown. Open updates end as cancelled.
  virtual void Close() = 0;
};

/// What is in a suspended engine's memory when it resumes.
enum class Contents : uint8_t {
  kLost,
  kIntact,  ///< Every byte is as it was before Suspend.
};

/// What ReceiveGroup has received.
struct ReceivedGroup {
  Version version;
  uint32_t group = 0;  ///< Index into LandingOptions::groups.
  bool last = false;   ///< Of the update.
};

/// An inference rank. The phases belong to one thread at a time; all else is thread safe.
/// While the controller is unreachable it serves on, without limit. A call that waits meanwhile ends after
/// controller_timeout with kUnavailable and may be called again, as after kTimedOut. Only a Wait into which
/// bytes were landing (in_place) abandons its update: the rank is FAILED until a later one.
class Inference {
 public:
  static Result<std::unique_ptr<Inference>> Connect(WorkerOptions options);
  virtual ~Inference() = default;
  /// What the trainers have registered, once all of them have: before Register, or at any time. What they
  /// only declare is left out. kTimedOut: some have not registered yet.
  virtual Result<std::vector<TensorInfo>> Offered(TimePoint deadline) = 0;
  /// Registers the shards that this rank receives, and how they land. kUnavailable: another engine still
  /// reads the memory that was registered before.
  virtual Status Register(Registration registration, LandingOptions options = {}) = 0;

  /// The phases in one, for simple loops: blocks until a version newer than `newer_than` is served.
  /// The live tensors change only while this call runs. kTimedOut leaves all as it was.
  virtual Result<Version> Wait(Version newer_than, TimePoint deadline) = 0;

  /// The engine is paused: from here until Finish or Abort the live tensors may be written.
  virtual Status Begin() = 0;
  /// Blocks until all bytes of an update are there and every rank may switch; then calls on_switch and copies
  /// spare buffers into the live tensors. Then the engine post-processes. kTimedOut: may be called again.
  virtual Result<Version> Receive(TimePoint deadline) = 0;
  /// The same for one group of LandingOptions::groups: blocks until its bytes are there at every rank of the
  /// engine. The caller hands the group on and calls again, which grants the next; after the last come Commit
  /// and Served, or Finish. kTimedOut: may be called again.
  virtual Result<ReceivedGroup> ReceiveGroup(TimePoint deadline) = 0;
  /// Says that this rank has switched; returns at once.
  virtual Status Commit() = 0;
  /// After Commit: returns when all ranks of the engine have switched: serve. A deadline that has passed only
  /// looks. kTimedOut: may be called again.
  virtual Status Served(TimePoint deadline) = 0;
  /// Commit and Served.
  virtual Status Finish(TimePoint deadline) = 0;
  /// Abandons the update. With shadow and loader landing the old version is served on if Receive has not
  /// returned; otherwise, and with in_place if anything may have been written, the rank is FAILED until a
  /// later update. Blocks at most two leases. Errors: kFenced, others might still write or read here, so stay
  /// paused and call again; kTimedOut, the phases are over, but the controller has not said yet what the rank
  /// has left (see state); kCancelled, interrupted.
  virtual Status Abort() = 0;

  /// Suspends the engine: when this returns no peer can write or read the registered memory, none of it is
  /// registered any more, and it may be freed, moved or mapped again. An update under way goes on without
  /// this engine. kFenced: a stopped peer might still write; free nothing and call again. Not between Begin
  /// and Finish.
  virtual Status Suspend(TimePoint deadline) = 0;
  /// Registers the same shards, at the same addresses, again. What was served before is served on only if its
  /// bytes are `kIntact`. An engine that is behind then gets the newest version.
  virtual Status Resume(Contents contents = Contents::kLost) = 0;

  /// The digests of the live tensors, which must not change meanwhile; else as Trainer::Digest. Nothing lands
  /// in them until it returns: kInvalidArgument between Begin and Finish (or Abort), inside another call, and
  /// where a shard lands for a loader, because it is not live. kUnavailable: no version is served.
  virtual Result<Digests> Digest() = 0;
  /// What is served: its number is -1 unless the live tensors are wholly of this version and may be read.
  [[nodiscard]] virtual Version version() const = 0;
  [[nodiscard]] virtual EngineState state() const = 0;
  /// Why the last update failed here; ok if it did not.
  [[nodiscard]] virtual Status last_error() const = 0;
  /// "name: in_place", or shadow, loader, not sent; a line for each tensor.
  [[nodiscard]] virtual std::vector<std::string> Describe() const = 0;
  [[nodiscard]] virtual std::vector<std::string> ConnectionMap() const = 0;
  virtual void Close() = 0;
};

/// Belongs in the process that can pause the engine (vLLM's or SGLang's front end), once per engine. The
/// controller commands the engine through it: no tensor of a paused-for update is written before the engine
/// is paused, and no request is admitted while the engine has no whole version. Its commands, one at a time:
///   kPause     generate nothing: the tensors are about to change (shadow landing: to be switched)
///   kActivate  every rank has switched: flush what was computed with the old weights, say the new version
///   kResume    every rank serves `version`: resume, and admit requests
///   kDrain     there is no whole version to serve (`reason`): admit no requests
/// Each has `commit_timeout`; an engine that is later, or answers with an error, is out of the update. An
/// engine that has had a control takes part in updates only while one is connected. Thread safe, but Next is
/// for one thread.
class EngineControl {
 public:
  enum class Command { kPause, kActivate, kResume, kDrain };
  struct Order {
    uint64_t number = 0;
    Command command = Command::kDrain;
    Version version;
    std::string reason;
    uint64_t session = 0;  ///< Of this object's; orders of an earlier one need no answer.
  };
  /// `options.engine` names the engine; rank and world size are not used. Blocks as Trainer::Connect.
  static Result<std::unique_ptr<EngineControl>> Connect(WorkerOptions options);
  virtual ~EngineControl() = default;
  /// The next thing to do; one that was replaced before it was taken is left out. kTimedOut; why the session
  /// has ended.
  virtual Result<Order> Next(TimePoint deadline) = 0;
  /// It is done, or why it could not be.
  virtual void Answer(const Order& order, const Status& status) = 0;
  virtual void Close() = 0;
};

/// The process that plans, in this process.
class Controller {
 public:
  struct Options {
    std::string listen;  ///< "host:port", port 0: any; empty: the setting `controller`. Loopback unless there
                         ///< is a token.
    std::map<std::string, std::string> settings;
    std::string http = {};  ///< "host:port", port 0: any: serves the live page there (docs/http.md). Empty:
                            ///< not at all.
  };
  static Result<std::unique_ptr<Controller>> Start(Options options);
  virtual ~Controller() = default;
  [[nodiscard]] virtual std::string address() const = 0;
  /// Where the page is; empty without it.
  [[nodiscard]] virtual std::string http_address() const = 0;
  virtual void Stop() = 0;
};

/// Sets the least level that is printed to standard error: "debug", "info", "warning", "error", "off".
Status SetLogLevelByName(const std::string& level);

}  // namespace weightcast
