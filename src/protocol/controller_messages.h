#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/worker_messages.h"

/// What the controller says to workers.
namespace weightcast::protocol {

struct Welcome {
  Term term;
  Run run = {};              ///< Versions of these trainers belong to it.
  double lease_seconds = 0;  ///< The controller's; workers of another lease warn.
};
constexpr auto Fields(Is<Welcome> auto& m, auto&& visit) {
  return visit(F("term", m.term), F("run", m.run), F("lease_seconds", m.lease_seconds));
}

/// Ends the session for good: wrong job, rank taken, protocol version, plan error ...
struct Refused {
  Status reason;
};
constexpr auto Fields(Is<Refused> auto& m, auto&& visit) { return visit(F("reason", m.reason)); }
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
};
constexpr auto Fields(Is<Plan> auto& m, auto&& visit) {
  return visit(F("epoch", m.epoch), F("run", m.run), F("table", m.table, Bytes{kMaxMessageBytes}),
               F("table_file", m.table_file, Name{kMaxPathBytes}), F("peers", m.peers, List{kMaxWorkers}),
               F("gives", m.gives));
}

/// Trainer: a destination's landing places, index = its number in the table.
struct PeerLanding {
  uint32_t destination = 0;
  LandingMap map;
};
constexpr auto Fields(Is<PeerLanding> auto& m, auto&& visit) {
  return visit(F("destination", m.destination), F("map", m.map));
}

/// Trainer and inference: this version was superseded before its update opened.
struct Superseded {
  Version version;
};
constexpr auto Fields(Is<Superseded> auto& m, auto&& visit) { return visit(F("version", m.version)); }
/// Inference: give grants when the engine is paused (or has a spare buffer). Above part 0: every rank of the
/// engine has the part before; give grants when the engine has taken it over.
struct GrantRequest {
  UpdateId update;
  Version version;
  uint32_t part = 0;
};
constexpr auto Fields(Is<GrantRequest> auto& m, auto&& visit) {
  return visit(F("update", m.update), F("version", m.version), F("part", m.part, kPart));
}

/// Permission to write to one destination.
struct DestinationGrant {
  uint32_t destination = 0;  ///< Its number in the table.
  uint32_t slot = 0;
  uint64_t grant = 0;
  bool compares = false;  ///< The destination wants SentDigests.
};
constexpr auto Fields(Is<DestinationGrant> auto& m, auto&& visit) {
  return visit(F("destination", m.destination), F("slot", m.slot), F("grant", m.grant, Fixed{}),
               F("compares", m.compares));
}

/// Source (a trainer, or an inference rank with a Plan that gives): this part of the destinations may be
/// written. Each is begun, stopped and answered for by itself.
struct Start {
  UpdateId update;
  Version version;
  uint32_t part = 0;
  std::vector<DestinationGrant> grants;
};
constexpr auto Fields(Is<Start> auto& m, auto&& visit) {
  return visit(F("update", m.update), F("version", m.version), F("part", m.part, kPart),
               F("grants", m.grants, List{kMaxWorkers}));
}

/// Inference: SentDigests of one of its sources.
struct SourceDigests {
  UpdateId update;
  uint32_t source = 0;  ///< Its number in the table.
  uint32_t part = 0;
  std::vector<TensorDigest> digests;
};
constexpr auto Fields(Is<SourceDigests> auto& m, auto&& visit) {
  return visit(F("update", m.update), F("source", m.source), F("part", m.part, kPart),
               F("digests", m.digests, List{kMaxShards}));
}

/// Inference: all ranks of the engine (of all engines, by policy) are ready: switch.
struct Commit {
  UpdateId update;
};
constexpr auto Fields(Is<Commit> auto& m, auto&& visit) { return visit(F("update", m.update)); }
/// Inference: all ranks of the engine have switched: serve.
struct Serve {
  UpdateId update;
};
constexpr auto Fields(Is<Serve> auto& m, auto&& visit) { return visit(F("update", m.update)); }
/// Trainer: this destination's engine is out of the update: stop writing to it, say nothing of it any more.
/// The other destinations go on.
struct Stop {
  UpdateId update;
  uint32_t destination = 0;
};
constexpr auto Fields(Is<Stop> auto& m, auto&& visit) {
  return visit(F("update", m.update), F("destination", m.destination));
}

/// Inference: revoke, answer Aborted. Trainer: the whole update is off, sources may change, Done follows.
struct Abort {
  UpdateId update;
  /// Inference: ok when the user's call waits on, because the update was superseded before anything was
  /// sent, or is tried again from other sources.
  Status reason;
  Version version = {};  ///< Trainer: of the update.
  bool started = true;   ///< Inference: some source may have been told of this engine's grants.
};
constexpr auto Fields(Is<Abort> auto& m, auto&& visit) {
  return visit(F("update", m.update), F("reason", m.reason), F("version", m.version),
               F("started", m.started));
}

/// Trainer: every rank of every engine that is still in the update is ready: sources may change.
struct Release {
  UpdateId update;
  Version version = {};
};
constexpr auto Fields(Is<Release> auto& m, auto&& visit) {
  return visit(F("update", m.update), F("version", m.version));
}

struct EngineOutcome {
  std::string engine;
  bool committed = false;
  Status reason;
  int64_t rank = -1;  ///< Whose fault it was, if it was a rank's of this engine.
};
constexpr auto Fields(Is<EngineOutcome> auto& m, auto&& visit) {
  return visit(F("engine", m.engine, Name{}), F("committed", m.committed), F("reason", m.reason),
               F("rank", m.rank, kWorkerOrNone));
}

struct RankBytes {
  WorkerName name;
  uint64_t bytes = 0;
  double seconds = 0;
  uint64_t compared = 0;  ///< Receivers: as in Ready.
};
constexpr auto Fields(Is<RankBytes> auto& m, auto&& visit) {
  return visit(F("name", m.name), F("bytes", m.bytes), F("seconds", m.seconds), F("compared", m.compared));
}

/// All that went from one source to one inference rank.
struct RouteBytes {
  WorkerName sender;
  WorkerName receiver;
  uint64_t bytes = 0;
  double seconds = 0;  ///< From the receiver's grant on.
};
constexpr auto Fields(Is<RouteBytes> auto& m, auto&& visit) {
  return visit(F("sender", m.sender), F("receiver", m.receiver), F("bytes", m.bytes),
               F("seconds", m.seconds));
}

/// Trainer: the update is over. The same to each; of many senders, ranks and routes it lists the slowest.
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
  // Of all ranks, also those that are not listed.
  uint64_t bytes = 0;
  uint64_t compared = 0;        ///< As in Ready.
  uint32_t compared_ranks = 0;  ///< That have compared any.
};
constexpr auto Fields(Is<Done> auto& m, auto&& visit) {
  return visit(F("update", m.update), F("version", m.version), F("met_policy", m.met_policy),
               F("reason", m.reason), F("engines", m.engines, List{kMaxWorkers}),
               F("senders", m.senders, List{kMaxDoneRows}), F("receivers", m.receivers, List{kMaxDoneRows}),
               F("routes", m.routes, List{kMaxDoneRows}), F("seconds", m.seconds), F("bytes", m.bytes),
               F("compared", m.compared), F("compared_ranks", m.compared_ranks));
}

/// What an EngineControl is asked to do with its engine.
enum class Command : uint8_t {
  kPause,     ///< Generate nothing: the tensors are about to change.
  kActivate,  ///< Every rank has switched to `version`: flush what was computed with the old weights, say the
              ///< new version.
  kResume,    ///< Every rank serves `version`: go on, and let requests come.
  kDrain,     ///< There is no whole version to serve: let no requests come.
};

/// EngineControl: answered by EngineCommandResult. A later order replaces one that is not done yet.
struct EngineCommand {
  uint64_t order = 0;  ///< Rises within a session.
  Command command = Command::kDrain;
  Version version;
  Status reason = {};  ///< Of kDrain.
};
constexpr auto Fields(Is<EngineCommand> auto& m, auto&& visit) {
  return visit(F("order", m.order), F("command", m.command), F("version", m.version), F("reason", m.reason));
}

/// Inference: the engine has an EngineControl and takes part in updates only with it.
struct Controlled {};

/// Inference: the tensors that all trainers have registered, by name, without those they only declare.
struct Offered {
  std::vector<TensorInfo> tensors;
};
constexpr auto Fields(Is<Offered> auto& m, auto&& visit) {
  return visit(F("tensors", m.tensors, List{kMaxShards}));
}

/// A worker of this model is gone.
struct Lost {
  WorkerName name;
  Status reason;
};
constexpr auto Fields(Is<Lost> auto& m, auto&& visit) {
  return visit(F("name", m.name), F("reason", m.reason));
}

constexpr Command LastOf(Command) { return Command::kDrain; }
std::string_view NameOf(Command command);  ///< "pause"

std::string FaultOf(const Refused& refused);

}  // namespace weightcast::protocol
