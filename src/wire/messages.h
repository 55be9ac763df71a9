#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "weightcast/digest.h"
#include "weightcast/engine_state.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"
#include "weightcast/version.h"

/// What workers and the controller say to each other: the words of docs/protocol.md as plain structs.
/// The protocol's state machines and their model checker use these; control.proto carries them.
namespace weightcast::wire {

/// Raised whenever two sides would misunderstand each other.
inline constexpr uint32_t kProtocolVersion = 2;

/// One controller's reign. A higher number wins; the random id tells two that chose the same.
struct Term {
  uint64_t number = 0;
  uint64_t id = 0;
  friend auto operator<=>(const Term&, const Term&) = default;
};

/// A beginning of the trainers. Two controllers may give one number: it is the same run only if the same
/// controller counted it. Number 0: none yet.
struct Run {
  uint64_t number = 0;
  uint64_t origin = 0;  ///< Term::id of the controller that counted it.
  friend bool operator==(const Run&, const Run&) = default;
};
inline Run RunOf(const Version& version) { return {version.run, version.origin}; }
/// What an engine goes by: it takes no version back. Not an order of versions that several controllers
/// counted.
inline std::pair<uint64_t, int64_t> RunAndNumber(const Version& version) {
  return {version.run, version.number};
}
inline const Version& LaterOf(const Version& a, const Version& b) {
  return RunAndNumber(a) < RunAndNumber(b) ? b : a;
}
inline Version VersionOf(const Run& run, int64_t number, std::string label = {}) {
  return {run.number, number, run.origin, std::move(label)};
}

/// What the machinery goes by. Newer is greater.
struct UpdateId {
  Term term;
  uint32_t epoch = 0;     ///< Of the plan under which it runs.
  uint64_t sequence = 0;  ///< Counts the updates of a term and model.
  uint32_t attempt = 0;
  friend auto operator<=>(const UpdateId&, const UpdateId&) = default;
};

/// kControl: the EngineControl of an engine, which pauses it; no rank.
enum class Role : uint8_t { kTrainer, kInference, kControl };

/// A worker's place. Trainers have an empty engine; an EngineControl has rank 0.
struct WorkerName {
  Role role = Role::kTrainer;
  std::string engine;
  uint32_t rank = 0;
  friend auto operator<=>(const WorkerName&, const WorkerName&) = default;
};

enum class Landing : uint8_t { kInPlace, kShadow };

using weightcast::EngineState;
using weightcast::NameOf;

/// One shard a worker holds (or, `declared`, leaves out of updates on purpose).
struct ShardInfo {
  TensorInfo tensor;
  Box box;
  bool declared = false;
  friend bool operator==(const ShardInfo&, const ShardInfo&) = default;
};

/// Where peers reach a worker.
struct Member {
  WorkerName name;
  uint64_t incarnation = 0;
  std::vector<std::string> addresses;
  friend bool operator==(const Member&, const Member&) = default;
};

/// Leave given to one source.
struct SourceGrant {
  uint32_t source = 0;  ///< Its number in the table.
  uint32_t slot = 0;
  uint64_t id = 0;
  friend bool operator==(const SourceGrant&, const SourceGrant&) = default;
};

// --- Worker -> controller ----------------------------------------------------------------------

/// First on every stream, also after a break.
struct Hello {
  uint32_t protocol = kProtocolVersion;
  std::string job;
  std::string model;
  WorkerName name;
  uint32_t world_size = 0;  ///< Trainers, or ranks of this engine.
  uint64_t incarnation = 0;
  std::vector<std::string> addresses;
  std::string host;
  Landing landing = Landing::kInPlace;
  EngineState state = EngineState::kJoining;
  Version version;  ///< Inference: served (or -1).
  Version newest;   ///< Inference: that this process has ever served.
  Run run;          ///< Trainer: the last that it was told of.
  friend bool operator==(const Hello&, const Hello&) = default;
};
/// The worker's shards (and name rules, trainers only; JSON). A new one replaces the old. With it an
/// inference rank says where it stands as it sends this: a Hello may have been packed long before it went
/// out.
struct Register {
  std::vector<ShardInfo> shards;
  std::string rules;
  Landing landing = Landing::kInPlace;
  EngineState state = EngineState::kJoining;
  Version version = {};  ///< Served (or -1).
  bool shares = true;    ///< Inference: others may get what has landed here from here.
  Version landed =
      {};  ///< Inference: what the landing memory wholly holds; with shadow landing not always `version`.
  bool controlled = false;  ///< Inference: was told Controlled once.
  Version newest = {};      ///< As in Hello.
  std::vector<std::string> unwanted =
      {};                        ///< Inference: name patterns of trainers' tensors it does not take.
  std::string group_model = {};  ///< Of a commit group: the model whose tensors and rules these are.
  /// Inference: in how many parts an update comes, each granted when the one before was handed on.
  uint32_t parts = 1;
  friend bool operator==(const Register&, const Register&) = default;
};
/// Inference: asks for Offered, once. Answered when all trainers have registered.
struct AskOffered {
  friend bool operator==(const AskOffered&, const AskOffered&) = default;
};
/// Inference: where the shards of Register land. Blobs are Region::Descriptor; shard i of the
/// registration begins at `offset` of region `region`. A trainer knows tensors and boxes from its table but
/// not the order of another's registration: it finds a place by `shard` (worker/shard_key.h).
/// Sent after each Register, and again when memory has moved.
struct LandingMap {
  uint32_t epoch = 0;  ///< 0 from the worker; in a PeerLanding the plan's.
  std::vector<std::string> regions;
  struct Place {
    uint32_t region = 0;
    uint64_t offset = 0;
    uint64_t shard = 0;  ///< Key of (tensor, box, copy); unique within the map. Opaque to the controller.
    uint32_t part = 0;   ///< Of the update, with which it comes.
    friend bool operator==(const Place&, const Place&) = default;
  };
  std::vector<Place> places;
  friend bool operator==(const LandingMap&, const LandingMap&) = default;
};
/// Table read, connections of this epoch made.
struct Prepared {
  uint32_t epoch = 0;
  /// Inference: how each source reaches this rank, a line each, for people.
  std::vector<std::string> connections = {};
  friend bool operator==(const Prepared&, const Prepared&) = default;
};
struct Published {
  int64_t number = 0;
  Run run = {};  ///< As this trainer knew it when it published.
  /// The bytes stay unchanged until this trainer publishes again: engines that join later get them too.
  bool hold = false;
  std::string label = {};  ///< Version::label; trainer 0's counts.
  friend bool operator==(const Published&, const Published&) = default;
};
struct Granted {
  UpdateId update;
  std::vector<SourceGrant> grants;
  uint32_t part = 0;
  bool compares = false;  ///< The rank wants SourceDigests of each source before it is ready.
  friend bool operator==(const Granted&, const Granted&) = default;
};
/// What a rank has received from one source, and when the last of it came (seconds from the grant on).
struct SourceBytes {
  uint32_t source = 0;  ///< Its number in the table.
  uint64_t bytes = 0;
  double seconds = 0;
  friend bool operator==(const SourceBytes&, const SourceBytes&) = default;
};
/// Inference: every byte of the part is there and verified. The figures are of all parts so far.
struct Ready {
  UpdateId update;
  uint64_t bytes = 0;
  double seconds = 0;  ///< From the grant on.
  std::vector<SourceBytes> sources = {};
  uint32_t part = 0;
  uint64_t compared = 0;  ///< Tensors that were compared with their sources by digest; 0: none was asked for.
  friend bool operator==(const Ready&, const Ready&) = default;
};
/// Inference: switched; not yet serving.
struct Committed {
  UpdateId update;
  friend bool operator==(const Committed&, const Committed&) = default;
};
/// Inference: serving this version.
struct Serving {
  UpdateId update;
  Version version;
  friend bool operator==(const Serving&, const Serving&) = default;
};
/// Inference: the grants of this update are closed and fenced; with one buffer its bytes are lost.
struct Aborted {
  UpdateId update;
  bool lost = false;
  Version landed = {};  ///< As in Register.
  friend bool operator==(const Aborted&, const Aborted&) = default;
};
/// A step failed here. With a destination (trainer) or from an inference rank: that engine is out of this
/// update and the others go on. From a trainer without one: the update aborts. While a plan is being
/// prepared: `update` holds the term and the epoch alone, and the controller plans again or refuses who stays
/// unreachable.
struct Failed {
  UpdateId update;
  int64_t destination = -1;  ///< Source: its number in the table, when only the road to it failed.
  Status reason;
  int64_t source = -1;  ///< Inference: its number in the table, when only the road from it failed.
  friend bool operator==(const Failed&, const Failed&) = default;
};
/// Source: the digests of what it sends to one destination in one part, where Start asks for them. A digest
/// for each tensor, in the order in which the transfers begin with them (worker/comparison.h).
struct SentDigests {
  UpdateId update;
  uint32_t destination = 0;  ///< Its number in the table.
  uint32_t part = 0;
  std::vector<TensorDigest> digests;
  friend bool operator==(const SentDigests&, const SentDigests&) = default;
};
/// Inference: nothing can land here any more, nobody reads here, and nothing is served, until the next
/// Register.
struct Suspended {
  friend bool operator==(const Suspended&, const Suspended&) = default;
};
/// EngineControl: what Steer asked for is done, or why not.
struct Steered {
  uint64_t order = 0;  ///< 0: of none; said once in each session, which begins with it.
  Status status;
  friend bool operator==(const Steered&, const Steered&) = default;
};
/// Trainer: the user called cancel().
struct Cancel {
  int64_t number = 0;
  friend bool operator==(const Cancel&, const Cancel&) = default;
};
struct Heartbeat {
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};
/// Polite end.
struct Goodbye {
  friend bool operator==(const Goodbye&, const Goodbye&) = default;
};

using WorkerMessage =
    std::variant<Hello, Register, LandingMap, Prepared, Published, Granted, Ready, Committed, Serving,
                 Aborted, Failed, Suspended, Steered, Cancel, Heartbeat, Goodbye, AskOffered, SentDigests>;

// --- Controller -> worker ----------------------------------------------------------------------

struct Welcome {
  Term term;
  Run run = {};              ///< Versions of these trainers belong to it.
  double lease_seconds = 0;  ///< The controller's; workers of another lease warn.
  friend bool operator==(const Welcome&, const Welcome&) = default;
};
/// Ends the session for good: wrong job, rank taken, protocol version, plan error ...
struct Refused {
  Status reason;
  friend bool operator==(const Refused&, const Refused&) = default;
};
/// A plan this worker has a part in: from here on everything of older epochs is void. `table` is
/// plan::TableEncoder's bytes, or empty when `table_file` names the file in the shared folder.
struct Plan {
  uint32_t epoch = 0;
  /// Of versions published from now on: higher than Welcome's once a trainer was replaced.
  Run run = {};
  std::string table;
  std::string table_file;
  /// The other side; index = rank number in the table. Those it exchanges nothing with have incarnation 0.
  std::vector<Member> peers;
  /// Inference: this rank is a source of the plan, and its table is one of the sending side.
  bool gives = false;
  friend bool operator==(const Plan&, const Plan&) = default;
};
/// Trainer: a destination's landing places, index = its number in the table.
struct PeerLanding {
  uint32_t destination = 0;
  LandingMap map;
  friend bool operator==(const PeerLanding&, const PeerLanding&) = default;
};
/// Trainer and inference: this version was superseded before its update opened.
struct Superseded {
  Version version;
  friend bool operator==(const Superseded&, const Superseded&) = default;
};
/// Inference: give grants when the engine is paused (or has a spare buffer). Above part 0: every rank of the
/// engine has the part before; give grants when the engine has taken it over.
struct GrantRequest {
  UpdateId update;
  Version version;
  uint32_t part = 0;
  friend bool operator==(const GrantRequest&, const GrantRequest&) = default;
};
/// Source (a trainer, or an inference rank with a Plan that gives): this part of the destination may be
/// written.
struct Start {
  UpdateId update;
  Version version;
  uint32_t destination = 0;
  uint32_t slot = 0;
  uint64_t grant = 0;
  uint32_t part = 0;
  bool compares = false;  ///< The destination wants SentDigests.
  friend bool operator==(const Start&, const Start&) = default;
};
/// Inference: SentDigests of one of its sources.
struct SourceDigests {
  UpdateId update;
  uint32_t source = 0;  ///< Its number in the table.
  uint32_t part = 0;
  std::vector<TensorDigest> digests;
  friend bool operator==(const SourceDigests&, const SourceDigests&) = default;
};
/// Inference: all ranks of the engine (of all engines, by policy) are ready: switch.
struct Commit {
  UpdateId update;
  friend bool operator==(const Commit&, const Commit&) = default;
};
/// Inference: all ranks of the engine have switched: serve.
struct Serve {
  UpdateId update;
  friend bool operator==(const Serve&, const Serve&) = default;
};
/// Trainer: this destination's engine is out of the update: stop writing to it, say nothing of it any more.
/// The other destinations go on.
struct Stop {
  UpdateId update;
  uint32_t destination = 0;
  friend bool operator==(const Stop&, const Stop&) = default;
};
/// Inference: revoke, answer Aborted. Trainer: the whole update is off, sources may change, Done follows.
struct Abort {
  UpdateId update;
  /// Inference: ok when the user's call waits on, because the update was superseded before anything was
  /// sent, or is tried again from other sources.
  Status reason;
  Version version = {};  ///< Trainer: of the update.
  bool started = true;   ///< Inference: some source may have been told of this engine's grants.
  friend bool operator==(const Abort&, const Abort&) = default;
};
/// Trainer: every rank of every engine that is still in the update is ready: sources may change.
struct Release {
  UpdateId update;
  Version version = {};
  friend bool operator==(const Release&, const Release&) = default;
};
struct EngineOutcome {
  std::string engine;
  bool committed = false;
  Status reason;
  int64_t rank = -1;  ///< Whose fault it was, if it was a rank's of this engine.
  friend bool operator==(const EngineOutcome&, const EngineOutcome&) = default;
};
struct RankBytes {
  WorkerName name;
  uint64_t bytes = 0;
  double seconds = 0;
  uint64_t compared = 0;  ///< Receivers: as in Ready.
  friend bool operator==(const RankBytes&, const RankBytes&) = default;
};
/// All that went from one source to one inference rank.
struct RouteBytes {
  WorkerName sender;
  WorkerName receiver;
  uint64_t bytes = 0;
  double seconds = 0;  ///< From the receiver's grant on.
  friend bool operator==(const RouteBytes&, const RouteBytes&) = default;
};
/// Trainer: the update is over.
struct Done {
  UpdateId update;
  Version version;
  bool met_policy = false;
  Status reason;  ///< When not met: who and why.
  std::vector<EngineOutcome> engines;
  std::vector<RankBytes> senders;
  std::vector<RankBytes> receivers;
  std::vector<RouteBytes> routes = {};
  double seconds = 0;  ///< From the first grant request to the last rank's Ready.
  friend bool operator==(const Done&, const Done&) = default;
};
/// What an EngineControl is asked to do with its engine.
enum class Move : uint8_t {
  kPause,   ///< Generate nothing: the tensors are about to change.
  kSettle,  ///< Every rank has switched to `version`: flush what was computed with the old weights, say the
            ///< new version.
  kAdmit,   ///< Every rank serves `version`: go on, and let requests come.
  kEvict,   ///< There is no whole version to serve: let no requests come.
};
/// EngineControl: answered by Steered. A later order replaces one that is not done yet.
struct Steer {
  uint64_t order = 0;  ///< Rises within a session.
  Move move = Move::kEvict;
  Version version;
  Status reason = {};  ///< Of kEvict.
  friend bool operator==(const Steer&, const Steer&) = default;
};
/// Inference: the engine has an EngineControl and takes part in updates only with it.
struct Controlled {
  friend bool operator==(const Controlled&, const Controlled&) = default;
};
/// Inference: the tensors that all trainers have registered, by name, without those they only declare.
struct Offered {
  std::vector<TensorInfo> tensors;
  friend bool operator==(const Offered&, const Offered&) = default;
};
/// A worker of this model is gone.
struct Lost {
  WorkerName name;
  Status reason;
  friend bool operator==(const Lost&, const Lost&) = default;
};

using ControllerMessage =
    std::variant<Welcome, Refused, Plan, PeerLanding, Superseded, GrantRequest, Start, Commit, Serve, Stop,
                 Abort, Release, Done, Lost, Steer, Controlled, Heartbeat, Offered, SourceDigests>;

// --- What `weightcast info` shows ---------------------------------------------------------------

struct WorkerView {
  WorkerName name;
  std::string host;
  uint64_t incarnation = 0;
  bool alive = false;
  bool prepared = false;
  EngineState state = EngineState::kJoining;
  Version version;
  std::vector<std::string> addresses;
  std::vector<std::string> connections;  ///< Of Prepared.
  friend bool operator==(const WorkerView&, const WorkerView&) = default;
};
struct EngineView {
  std::string name;
  uint64_t incarnation = 0;  ///< Of its rank 0; 0: not here.
  uint32_t ranks = 0;
  EngineState state = EngineState::kJoining;
  Version version;
  std::string last_error;
  std::string control = {};  ///< How its EngineControl stands: "admitted", "pausing" ...; empty: it has none.
  friend bool operator==(const EngineView&, const EngineView&) = default;
};
struct ModelView {
  std::string model;
  uint32_t epoch = 0;
  std::string phase;  ///< "waiting for workers", "planned", "granting", "writing", "committing" ...
  Version version;    ///< Last committed.
  UpdateId update;
  std::vector<WorkerView> workers;
  std::vector<EngineView> engines;
  std::string last_error;
  std::vector<RankBytes> senders;  ///< Of the last update.
  std::vector<RouteBytes> routes;  ///< Likewise.
  friend bool operator==(const ModelView&, const ModelView&) = default;
};
struct ClusterView {
  Term term;
  std::string job;
  std::vector<ModelView> models;
  friend bool operator==(const ClusterView&, const ClusterView&) = default;
};

/// Whether a label may go with a version: kInvalidArgument if it is too long, has control characters or is
/// not UTF-8.
Status CheckLabel(std::string_view label);

std::string ToString(const WorkerName& name);  ///< "trainer 3", "engine rollout-1 rank 0"
std::string ToString(const UpdateId& update);  ///< "update 7.1 (term 1, epoch 2)"
std::string_view NameOf(Landing landing);      ///< "in_place"
std::string_view NameOf(Move move);            ///< "pause"

}  // namespace weightcast::wire
