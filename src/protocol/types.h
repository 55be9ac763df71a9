#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/field.h"
#include "weightcast/digest.h"
#include "weightcast/engine_state.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"
#include "weightcast/version.h"

/// What several messages consist of.
namespace weightcast::protocol {

// --- Types of the public API that messages carry -------------------------------------------------

constexpr auto Fields(Is<Version> auto& m, auto&& visit) {
  return visit(F("run", m.run), F("number", m.number, Range{-1, kMaxVersionNumber}),
               F("origin", m.origin, Fixed{}), F("label", m.label, Label{}));
}
constexpr auto Fields(Is<Box> auto& m, auto&& visit) {
  return visit(F("offset", m.offset, List{kMaxDims}), F("size", m.size, List{kMaxDims}));
}
constexpr auto Fields(Is<TensorInfo> auto& m, auto&& visit) {
  return visit(F("name", m.name, Name{kMaxTensorNameBytes}), F("dtype", m.dtype),
               F("shape", m.shape, List{kMaxDims}));
}
constexpr auto Fields(Is<TensorDigest> auto& m, auto&& visit) {
  return visit(F("high", m.high, Fixed{}), F("low", m.low, Fixed{}));
}

// --- What several messages carry ----------------------------------------------------------------

/// While one controller is followed. Numbers count upwards, and the higher one wins. The random id tells two
/// controllers that count the same: there the higher id wins.
struct Term {
  uint64_t number = 0;
  uint64_t id = 0;
  friend auto operator<=>(const Term&, const Term&) = default;
};
constexpr auto Fields(Is<Term> auto& m, auto&& visit) {
  return visit(F("number", m.number), F("id", m.id, Fixed{}));
}

/// A beginning of the trainers. Two controllers may give one number: it is the same run only if the same
/// controller counted it. Number 0: none yet.
struct Run {
  uint64_t number = 0;
  uint64_t origin = 0;  ///< Term::id of the controller that counted it.
};
constexpr auto Fields(Is<Run> auto& m, auto&& visit) {
  return visit(F("number", m.number), F("origin", m.origin, Fixed{}));
}
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
constexpr auto Fields(Is<UpdateId> auto& m, auto&& visit) {
  return visit(F("term", m.term), F("epoch", m.epoch), F("sequence", m.sequence), F("attempt", m.attempt));
}

/// kControl: the EngineControl of an engine, which pauses it; no rank.
enum class Role : uint8_t { kTrainer, kInference, kControl };

/// A worker's place. Trainers have an empty engine; an EngineControl has rank 0.
struct WorkerName {
  Role role = Role::kTrainer;
  std::string engine;
  uint32_t rank = 0;
  friend auto operator<=>(const WorkerName&, const WorkerName&) = default;
};
constexpr auto Fields(Is<WorkerName> auto& m, auto&& visit) {
  return visit(F("role", m.role), F("engine", m.engine, Name{}), F("rank", m.rank));
}

enum class Landing : uint8_t { kInPlace, kShadow };

using weightcast::EngineState;
using weightcast::NameOf;

/// One shard a worker holds (or, `declared`, leaves out of updates on purpose).
struct ShardInfo {
  TensorInfo tensor;
  Box box;
  bool declared = false;
};
constexpr auto Fields(Is<ShardInfo> auto& m, auto&& visit) {
  return visit(F("tensor", m.tensor), F("box", m.box), F("declared", m.declared));
}

/// Where peers reach a worker.
struct Member {
  WorkerName name;
  uint64_t incarnation = 0;
  std::vector<std::string> addresses;
  /// In a source's plan: what it proves to this peer (PairKey). Otherwise empty.
  std::string key = {};
};
constexpr auto Fields(Is<Member> auto& m, auto&& visit) {
  return visit(F("name", m.name), F("incarnation", m.incarnation, Fixed{}),
               F("addresses", m.addresses, kAddresses), F("key", m.key, Hidden{kSecretBytes}));
}

/// Leave given to one source.
struct SourceGrant {
  uint32_t source = 0;  ///< Its number in the table.
  uint32_t slot = 0;
  uint64_t id = 0;
};
constexpr auto Fields(Is<SourceGrant> auto& m, auto&& visit) {
  return visit(F("source", m.source), F("slot", m.slot), F("id", m.id, Fixed{}));
}

/// The last value of each enum that travels.
constexpr DType LastOf(DType) { return static_cast<DType>(kDTypeCount - 1); }
constexpr Code LastOf(Code) { return Code::kInternal; }
constexpr EngineState LastOf(EngineState) { return EngineState::kFailed; }
constexpr Role LastOf(Role) { return Role::kControl; }
constexpr Landing LastOf(Landing) { return Landing::kShadow; }

/// What is wrong with a struct beyond its single members; empty: nothing. A decoder asks after it has read
/// one.
std::string FaultOf(const Term& term);
std::string FaultOf(const ShardInfo& shard);
std::string FaultOf(const TensorDigest& digest);

/// Whether a label may go with a version: kInvalidArgument if it is too long, has control characters or is
/// not UTF-8.
Status CheckLabel(std::string_view label);

std::string ToString(const WorkerName& name);  ///< "trainer 3", "engine rollout-1 rank 0"
std::string ToString(const UpdateId& update);  ///< "update 7.1 (term 1, epoch 2)"
std::string_view NameOf(Landing landing);      ///< "in_place"

}  // namespace weightcast::protocol
