#pragma once

#include <cmath>
#include <string>
#include <string_view>

#include "base/strings.h"
#include "weightcast/status.h"
#include "wire/limits.h"
#include "wire/messages.h"

/// Between structs and protobuf messages, for the codec alone. Protobuf's types are only named here: its
/// headers stay in the .cc files.
namespace weightcast::wire {
namespace pb {
class Term;
class UpdateId;
class Run;
class Version;
class Status;
class WorkerName;
class Tensor;
class Shard;
class Member;
class SourceGrant;
class RankBytes;
class RouteBytes;
class EngineOutcome;
class LandingMap;
class WorkerMessage;
class ControllerMessage;
class ClusterView;
}  // namespace pb

/// Collects the first thing that is wrong with a message.
class Check {
 public:
  explicit Check(std::string_view message) : message_(message) {}

  bool That(bool fine, std::string_view what) {
    if (!fine && status_.ok())
      status_ = {Code::kProtocol,
                 StrCat("a ", message_.empty() ? "message" : message_, " from the network: ", what)};
    return fine;
  }
  bool Count(size_t count, size_t limit, std::string_view field) {
    return That(count <= limit, StrCat(field, " has ", count, " entries; at most ", limit, " are allowed"));
  }
  bool Size(size_t size, size_t limit, std::string_view field) {
    return That(size <= limit, StrCat(field, " has ", size, " bytes; at most ", limit, " are allowed"));
  }
  /// A name that may stand in a log line.
  bool Name(std::string_view name, size_t limit, std::string_view field) {
    return Size(name.size(), limit, field) &&
           That(IsPrintable(name), StrCat(field, " has control characters"));
  }
  bool Time(double seconds, std::string_view field) {
    return That(std::isfinite(seconds) && seconds >= 0, StrCat(field, " is not a length of time"));
  }
  template <typename Enum>
  Enum Value(uint32_t number, Enum last, std::string_view field) {
    const bool known = That(number <= static_cast<uint32_t>(last), StrCat(field, " ", number, " is unknown"));
    return known ? static_cast<Enum>(number) : Enum{};
  }
  /// Of an update.
  uint32_t Part(uint32_t part) {
    return That(part < kMaxParts, StrCat("part ", part, " is above ", kMaxParts - 1)) ? part : 0;
  }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  std::string_view message_;
  Status status_;
};

void Put(const Term& from, pb::Term& to);
void Put(const UpdateId& from, pb::UpdateId& to);
void Put(const Run& from, pb::Run& to);
void Put(const Version& from, pb::Version& to);
void Put(const weightcast::Status& from, pb::Status& to);
void Put(const WorkerName& from, pb::WorkerName& to);
void Put(const TensorInfo& from, pb::Tensor& to);
void Put(const ShardInfo& from, pb::Shard& to);
void Put(const Member& from, pb::Member& to);
void Put(const SourceGrant& from, pb::SourceGrant& to);
void Put(const RankBytes& from, pb::RankBytes& to);
void Put(const RouteBytes& from, pb::RouteBytes& to);
void Put(const EngineOutcome& from, pb::EngineOutcome& to);
void Put(const LandingMap& from, pb::LandingMap& to);

void Get(const pb::Term& from, Term& to, Check& check);
void Get(const pb::UpdateId& from, UpdateId& to, Check& check);
void Get(const pb::Run& from, Run& to, Check& check);
void Get(const pb::Version& from, Version& to, Check& check);
void Get(const pb::Status& from, weightcast::Status& to, Check& check);
void Get(const pb::WorkerName& from, WorkerName& to, Check& check);
void Get(const pb::Tensor& from, TensorInfo& to, Check& check);
void Get(const pb::Shard& from, ShardInfo& to, Check& check);
void Get(const pb::Member& from, Member& to, Check& check);
void Get(const pb::SourceGrant& from, SourceGrant& to, Check& check);
void Get(const pb::RankBytes& from, RankBytes& to, Check& check);
void Get(const pb::RouteBytes& from, RouteBytes& to, Check& check);
void Get(const pb::EngineOutcome& from, EngineOutcome& to, Check& check);
void Get(const pb::LandingMap& from, LandingMap& to, Check& check);

void Put(const WorkerMessage& from, pb::WorkerMessage& to);
void Put(const ControllerMessage& from, pb::ControllerMessage& to);
void Put(const ClusterView& from, pb::ClusterView& to);
void Get(const pb::WorkerMessage& from, WorkerMessage& to, Check& check);
void Get(const pb::ControllerMessage& from, ControllerMessage& to, Check& check);
void Get(const pb::ClusterView& from, ClusterView& to, Check& check);

/// Digests as 16 bytes each: two little-endian numbers, the high half first.
std::string BytesOf(const std::vector<TensorDigest>& digests);
std::vector<TensorDigest> DigestsFrom(std::string_view bytes, Check& check);

/// Repeated fields of either kind; `from` and `to` are a vector and a protobuf field.
template <typename From, typename To>
void PutAll(const From& from, To* to) {
  to->Reserve(static_cast<int>(from.size()));
  for (const auto& element : from) Put(element, *to->Add());
}
template <typename From, typename To>
void GetAll(const From& from, To& to, size_t limit, std::string_view field, Check& check) {
  if (!check.Count(static_cast<size_t>(from.size()), limit, field)) return;
  to.resize(static_cast<size_t>(from.size()));
  for (int i = 0; i < from.size() && check.status().ok(); ++i)
    Get(from[i], to[static_cast<size_t>(i)], check);
}
template <typename From>
void GetNames(const From& from, std::vector<std::string>& to, size_t limit, size_t bytes,
              std::string_view field, Check& check) {
  if (!check.Count(static_cast<size_t>(from.size()), limit, field)) return;
  for (const auto& name : from)
    if (check.Name(name, bytes, field)) to.push_back(name);
}

}  // namespace weightcast::wire
