#include "protocol/messages.h"

#include <algorithm>
#include <array>

#include "base/strings.h"

namespace weightcast {

std::string_view NameOf(EngineState state) {
  static constexpr std::array<std::string_view, 7> kNames = {"JOINING",   "SERVING",   "UPDATING", "READY",
                                                             "COMMITTED", "SUSPENDED", "FAILED"};
  return kNames[static_cast<size_t>(state)];
}

}  // namespace weightcast

namespace weightcast::protocol {

Status CheckLabel(std::string_view label) {
  const auto bad = [](std::string_view what) {
    return Error(Code::kInvalidArgument, "the label of a version ", what);
  };
  if (label.size() > kMaxNameBytes)
    return bad(StrCat("has ", label.size(), " bytes; give at most ", kMaxNameBytes));
  if (!IsPrintable(label)) return bad("has control characters; use printable text");
  if (!IsUtf8(label)) return bad("is not UTF-8; use printable text");
  return Status::Ok();
}

Status CheckProtocol(uint32_t version) {
  if (version == kProtocolVersion) return Status::Ok();
  return Error(Code::kProtocol, "the controller speaks protocol version ", kProtocolVersion,
               ", and the worker ", version == 0 ? "an older one" : std::to_string(version),
               "; use the same weightcast on all hosts");
}

std::string FaultOf(const Term& term) {
  if (term.number <= kMaxTerm) return {};
  return StrCat("number ", term.number, " is too large; at most ", kMaxTerm,
                " is allowed: use the same weightcast on all hosts");
}
std::string FaultOf(const ShardInfo& shard) {
  const size_t dims = shard.tensor.shape.size();
  if (shard.box.offset.size() == dims && shard.box.size.size() == dims) return {};
  return StrCat("box and shape of ", shard.tensor.name, " differ in dimensions");
}
std::string FaultOf(const TensorDigest& digest) {
  constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;  // Halves of digests are below it.
  return digest.high < kPrime && digest.low < kPrime ? "" : "a half of a digest is out of range";
}
std::string FaultOf(const Hello& hello) { return hello.incarnation != 0 ? "" : "incarnation is 0"; }
std::string FaultOf(const LandingMap& map) {
  const bool held = std::all_of(map.places.begin(), map.places.end(),
                                [&](const auto& place) { return place.region < map.regions.size(); });
  return held ? "" : "places name a region that the map does not hold";
}
std::string FaultOf(const Failed& failed) { return failed.reason.ok() ? "the reason is 'ok'" : ""; }
std::string FaultOf(const Refused& refused) { return refused.reason.ok() ? "the reason is 'ok'" : ""; }

std::string ToString(const WorkerName& name) {
  if (name.role == Role::kTrainer) return StrCat("trainer ", name.rank);
  if (name.role == Role::kControl) return StrCat("the control of engine ", name.engine);
  return StrCat("engine ", name.engine, " rank ", name.rank);
}

std::string ToString(const UpdateId& update) {
  return StrCat("update ", update.sequence, ".", update.attempt, " (term ", update.term.number, ", epoch ",
                update.epoch, ")");
}

std::string_view NameOf(Command command) {
  static constexpr std::array<std::string_view, 4> kNames = {"pause", "activate", "resume", "drain"};
  return kNames[static_cast<size_t>(command)];
}

std::string_view NameOf(SpanKind kind) {
  static constexpr std::array<std::string_view, 17> kNames = {
      "pause",   "reclaim",     "open",  "receive", "fence", "verify", "await_commit", "call", "switch",
      "process", "await_serve", "abort", "gate",    "turn",  "read",   "stage",        "write"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view NameOf(Landing landing) { return landing == Landing::kInPlace ? "in_place" : "shadow"; }

}  // namespace weightcast::protocol
