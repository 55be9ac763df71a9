#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/types.h"

/// What workers say to the controller.
namespace weightcast::protocol {

/// Raised whenever two sides would misunderstand each other.
inline constexpr uint32_t kProtocolVersion = 7;

/// First on every stream, also after a break.
struct Hello {
  uint32_t protocol = kProtocolVersion;
  std::string job;
  std::string model;
  WorkerName name;
  uint32_t world_size = 0;  ///< Trainers, or ranks of this engine.
  uint64_t incarnation = 0;
  std::string secret;  ///< Proves the incarnation (protocol/identity.h). For the controller alone.
  std::vector<std::string> addresses;
  std::string host;
  EngineState state = EngineState::kJoining;
  Version version;  ///< Inference: served (or -1).
  Version newest;   ///< Inference: that this process has ever served.
  Run run;          ///< Trainer: the last that it was told of.
  Term term;        ///< The last that this process has followed; number 0: none.
};
constexpr auto Fields(Is<Hello> auto& m, auto&& visit) {
  return visit(F("protocol", m.protocol), F("job", m.job, Name{}), F("model", m.model, Name{}),
               F("name", m.name), F("world_size", m.world_size), F("incarnation", m.incarnation, Fixed{}),
               F("secret", m.secret, Hidden{kSecretBytes}), F("addresses", m.addresses, kAddresses),
               F("host", m.host, Name{}), F("state", m.state), F("version", m.version), F("newest", m.newest),
               F("run", m.run), F("term", m.term));
}

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
};
constexpr auto Fields(Is<Register> auto& m, auto&& visit) {
  return visit(F("shards", m.shards, List{kMaxShards}), F("rules", m.rules, Bytes{kMaxRulesBytes}),
               F("landing", m.landing), F("state", m.state), F("version", m.version), F("shares", m.shares),
               F("landed", m.landed), F("controlled", m.controlled), F("newest", m.newest),
               F("unwanted", m.unwanted, List{kMaxPatterns, Name{kMaxTensorNameBytes}}),
               F("group_model", m.group_model, Name{}), F("parts", m.parts, Range{1, kMaxParts}));
}

/// Inference: asks for Offered, once. Answered when all trainers have registered.
struct AskOffered {};

/// Inference: where the shards of Register land. Blobs are Region::Descriptor; shard i of the
/// registration begins at `offset` of region `region`. A trainer knows tensors and boxes from its table but
/// not the order of another's registration: it finds a place by `shard` (worker/shards.h).
/// Sent after each Register, and again when memory has moved.
struct LandingMap {
  uint32_t epoch = 0;  ///< 0 from the worker; in a PeerLanding the plan's.
  std::vector<std::string> regions;
  struct Place {
    uint32_t region = 0;
    uint64_t offset = 0;
    uint64_t shard = 0;  ///< Key of (tensor, box, copy); unique within the map. Opaque to the controller.
    uint32_t part = 0;   ///< Of the update, with which it comes.
  };
  std::vector<Place> places;
};
constexpr auto Fields(Is<LandingMap::Place> auto& m, auto&& visit) {
  return visit(F("region", m.region), F("offset", m.offset), F("shard", m.shard, Fixed{}),
               F("part", m.part, kPart));
}
constexpr auto Fields(Is<LandingMap> auto& m, auto&& visit) {
  return visit(F("epoch", m.epoch), F("regions", m.regions, List{kMaxRegions, Bytes{kMaxDescriptorBytes}}),
               F("places", m.places, List{kMaxShards}));
}

/// Table read, connections of this epoch made.
struct Prepared {
  uint32_t epoch = 0;
  /// Inference: how each source reaches this rank, a line each, for people.
  std::vector<std::string> connections = {};
};
constexpr auto Fields(Is<Prepared> auto& m, auto&& visit) {
  return visit(F("epoch", m.epoch), F("connections", m.connections, kConnections));
}

struct Published {
  int64_t number = 0;
  Run run = {};  ///< As this trainer knew it when it published.
  /// The bytes stay unchanged until this trainer publishes again: engines that join later get them too.
  bool hold = false;
  std::string label = {};  ///< Version::label; trainer 0's counts.
};
constexpr auto Fields(Is<Published> auto& m, auto&& visit) {
  return visit(F("number", m.number, Range{0, kMaxVersionNumber}), F("run", m.run), F("hold", m.hold),
               F("label", m.label, Label{}));
}

struct Granted {
  UpdateId update;
  std::vector<SourceGrant> grants;
  uint32_t part = 0;
  bool compares = false;  ///< The rank wants SourceDigests of each source before it is ready.
};
constexpr auto Fields(Is<Granted> auto& m, auto&& visit) {
  return visit(F("update", m.update), F("grants", m.grants, List{kMaxWorkers}), F("part", m.part, kPart),
               F("compares", m.compares));
}

/// What a rank has received from one source, and when the last of it came (seconds from the grant on).
struct SourceBytes {
  uint32_t source = 0;  ///< Its number in the table.
  uint64_t bytes = 0;
  double seconds = 0;
};
constexpr auto Fields(Is<SourceBytes> auto& m, auto&& visit) {
  return visit(F("source", m.source), F("bytes", m.bytes), F("seconds", m.seconds));
}

/// Inference: every byte of the part is there and verified. The figures are of all parts so far.
struct Ready {
  UpdateId update;
  uint64_t bytes = 0;
  double seconds = 0;  ///< From the grant on.
  std::vector<SourceBytes> sources = {};
  uint32_t part = 0;
  uint64_t compared = 0;  ///< Tensors that were compared with their sources by digest; 0: none was asked for.
};
constexpr auto Fields(Is<Ready> auto& m, auto&& visit) {
  return visit(F("update", m.update), F("bytes", m.bytes), F("seconds", m.seconds),
               F("sources", m.sources, List{kMaxWorkers}), F("part", m.part, kPart),
               F("compared", m.compared));
}

/// Inference: switched; not yet serving.
struct Committed {
  UpdateId update;
};
constexpr auto Fields(Is<Committed> auto& m, auto&& visit) { return visit(F("update", m.update)); }
/// Inference: serving this version.
struct Serving {
  UpdateId update;
  Version version;
};
constexpr auto Fields(Is<Serving> auto& m, auto&& visit) {
  return visit(F("update", m.update), F("version", m.version));
}

/// Inference: the grants of this update are closed and fenced; with one buffer its bytes are lost.
struct Aborted {
  UpdateId update;
  bool lost = false;
  Version landed = {};  ///< As in Register.
};
constexpr auto Fields(Is<Aborted> auto& m, auto&& visit) {
  return visit(F("update", m.update), F("lost", m.lost), F("landed", m.landed));
}

/// A step failed here. With a destination (trainer) or from an inference rank: that engine is out of this
/// update and the others go on. From a trainer without one: the update aborts. While a plan is being
/// prepared: `update` holds the term and the epoch alone, and the controller plans again or refuses who stays
/// unreachable.
struct Failed {
  UpdateId update;
  int64_t destination = -1;  ///< Source: its number in the table, when only the path to it failed.
  Status reason;
  int64_t source = -1;  ///< Inference: its number in the table, when only the path from it failed.
};
constexpr auto Fields(Is<Failed> auto& m, auto&& visit) {
  return visit(F("update", m.update), F("destination", m.destination, kWorkerOrNone), F("reason", m.reason),
               F("source", m.source, kWorkerOrNone));
}

/// Source: the digests of what it sends to one destination in one part, where Start asks for them. A digest
/// for each tensor, in the order in which the transfers begin with them (worker/comparison.h).
struct SentDigests {
  UpdateId update;
  uint32_t destination = 0;  ///< Its number in the table.
  uint32_t part = 0;
  std::vector<TensorDigest> digests;
};
constexpr auto Fields(Is<SentDigests> auto& m, auto&& visit) {
  return visit(F("update", m.update), F("destination", m.destination), F("part", m.part, kPart),
               F("digests", m.digests, List{kMaxShards}));
}

/// What a worker spends the time of an update on (docs/explain.md).
enum class SpanKind : uint8_t {
  // An inference rank, in this order.
  kPause,        ///< Asked for grants: the engine has not begun.
  kReclaim,      ///< Others still read the landing memory.
  kOpen,         ///< Grants are being opened.
  kReceive,      ///< Bytes come.
  kFence,        ///< Until nothing can land any more.
  kVerify,       ///< Checksums or digests are compared.
  kAwaitCommit,  ///< Ready.
  kCall,         ///< Commit is here; the engine has not called Receive.
  kSwitch,       ///< on_switch, and the copy from spare buffers.
  kProcess,      ///< The engine post-processes until Finish.
  kAwaitServe,   ///< Committed.
  kAbort,        ///< The grants of an aborted update are fenced.
  // A source, of all it sends to one rank in one part. Kinds take turns: each is a sum.
  kGate,   ///< The user's streams, or Publish after Announce. To nobody: until a trainer's first Start.
  kTurn,   ///< Other destinations are served, or staging memory is full.
  kRead,   ///< From files, with nothing in flight.
  kStage,  ///< Cast, quantised, gathered; nothing in flight.
  kWrite,  ///< Something is in flight.
};

/// A length on the worker's own clock: clocks of two hosts are never compared.
struct Span {
  SpanKind kind{};
  int64_t peer = -1;  ///< Source: the destination's number in the table. -1: of none.
  uint32_t part = 0;
  double seconds = 0;
  double stalled = 0;     ///< Of these, in which the process did not run.
  uint64_t bytes = 0;     ///< kWrite; and the rest of its figures:
  uint64_t pieces = 0;    ///< Contiguous runs that they were.
  uint64_t chunk = 0;     ///< Most bytes of one write of the transport.
  uint32_t lanes = 0;     ///< That were up.
  std::string path = {};  ///< For people: the transport, its lanes, the peer.
};
constexpr auto Fields(Is<Span> auto& m, auto&& visit) {
  return visit(F("kind", m.kind), F("peer", m.peer, kWorkerOrNone), F("part", m.part, kPart),
               F("seconds", m.seconds), F("stalled", m.stalled), F("bytes", m.bytes), F("pieces", m.pieces),
               F("chunk", m.chunk), F("lanes", m.lanes), F("path", m.path, Name{kMaxConnectionBytes}));
}

/// What an update took here, once this worker's part in it is over. Never acted upon: no state of the
/// protocol depends on it.
struct Spans {
  UpdateId update;
  std::vector<Span> spans;
};
constexpr auto Fields(Is<Spans> auto& m, auto&& visit) {
  return visit(F("update", m.update), F("spans", m.spans, List{kMaxSpans}));
}

/// Inference: nothing can land here any more, nobody reads here, and nothing is served, until the next
/// Register.
struct Suspended {};

/// EngineControl: what an EngineCommand asked for is done, or why not.
struct EngineCommandResult {
  uint64_t order = 0;  ///< 0: of none; said once in each session, which begins with it.
  Status status;
};
constexpr auto Fields(Is<EngineCommandResult> auto& m, auto&& visit) {
  return visit(F("order", m.order), F("status", m.status));
}

/// Trainer: the user called cancel().
struct Cancel {
  int64_t number = 0;
};
constexpr auto Fields(Is<Cancel> auto& m, auto&& visit) { return visit(F("number", m.number)); }
struct Heartbeat {};

/// Graceful end.
struct Leave {};

constexpr SpanKind LastOf(SpanKind) { return SpanKind::kWrite; }
std::string_view NameOf(SpanKind kind);  ///< "await_commit"

std::string FaultOf(const Hello& hello);
std::string FaultOf(const LandingMap& map);
std::string FaultOf(const Failed& failed);

}  // namespace weightcast::protocol
