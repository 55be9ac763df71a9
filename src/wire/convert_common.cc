#include <algorithm>

#include "wire/control.pb.h"
#include "wire/convert.h"

namespace weightcast::wire {
namespace {

constexpr size_t kDigestBytes = 16;
constexpr uint64_t kDigestPrime = (uint64_t{1} << 61) - 1;  ///< Halves of digests are below it.

}  // namespace

void Put(const Term& from, pb::Term& to) {
  to.set_number(from.number);
  to.set_id(from.id);
}
void Get(const pb::Term& from, Term& to, Check& check) {
  check.That(from.number() <= kMaxTerm, StrCat("term ", from.number(), " is no time; at most ", kMaxTerm,
                                               " is allowed: is the controller's clock right?"));
  to = {.number = from.number(), .id = from.id()};
}

void Put(const UpdateId& from, pb::UpdateId& to) {
  Put(from.term, *to.mutable_term());
  to.set_epoch(from.epoch);
  to.set_sequence(from.sequence);
  to.set_attempt(from.attempt);
}
void Get(const pb::UpdateId& from, UpdateId& to, Check& check) {
  Get(from.term(), to.term, check);
  to.epoch = from.epoch();
  to.sequence = from.sequence();
  to.attempt = from.attempt();
}

void Put(const Run& from, pb::Run& to) {
  to.set_number(from.number);
  to.set_origin(from.origin);
}
void Get(const pb::Run& from, Run& to, Check&) { to = {.number = from.number(), .origin = from.origin()}; }

void Put(const Version& from, pb::Version& to) {
  to.set_run(from.run);
  to.set_number(from.number);
  to.set_origin(from.origin);
  to.set_label(from.label);
}
void Get(const pb::Version& from, Version& to, Check& check) {
  check.That(from.number() >= -1, "version has a number below -1");
  check.That(from.number() <= kMaxVersionNumber,
             StrCat("version ", from.number(), " is above ", kMaxVersionNumber));
  const weightcast::Status label = CheckLabel(from.label());
  check.That(label.ok(), label.message());
  to = {.run = from.run(), .number = from.number(), .origin = from.origin(), .label = from.label()};
}

void Put(const weightcast::Status& from, pb::Status& to) {
  to.set_code(static_cast<uint32_t>(from.code()));
  to.set_message(from.message().substr(0, kMaxStatusBytes));
}
void Get(const pb::Status& from, weightcast::Status& to, Check& check) {
  const Code code = check.Value(from.code(), Code::kInternal, "status code");
  check.Size(from.message().size(), kMaxStatusBytes, "status");
  to = code == Code::kOk ? weightcast::Status() : weightcast::Status(code, from.message());
}

void Put(const WorkerName& from, pb::WorkerName& to) {
  to.set_role(static_cast<uint32_t>(from.role));
  to.set_engine(from.engine);
  to.set_rank(from.rank);
}
void Get(const pb::WorkerName& from, WorkerName& to, Check& check) {
  to.role = check.Value(from.role(), Role::kControl, "role");
  check.Name(from.engine(), kMaxNameBytes, "engine");
  to.engine = from.engine();
  to.rank = from.rank();
}

void Put(const TensorInfo& from, pb::Tensor& to) {
  to.set_name(from.name);
  to.set_dtype(static_cast<uint32_t>(from.dtype));
  to.mutable_shape()->Assign(from.shape.begin(), from.shape.end());
}
void Get(const pb::Tensor& from, TensorInfo& to, Check& check) {
  const bool fine = check.Name(from.name(), kMaxTensorNameBytes, "tensor name") &&
                    check.Count(static_cast<size_t>(from.shape_size()), kMaxDims, "shape");
  if (!fine) return;
  to.name = from.name();
  to.dtype = check.Value(from.dtype(), static_cast<DType>(kDTypeCount - 1), "dtype");
  to.shape.assign(from.shape().begin(), from.shape().end());
}

void Put(const ShardInfo& from, pb::Shard& to) {
  Put(from.tensor, *to.mutable_tensor());
  to.mutable_offset()->Assign(from.box.offset.begin(), from.box.offset.end());
  to.mutable_size()->Assign(from.box.size.begin(), from.box.size.end());
  to.set_declared(from.declared);
}
void Get(const pb::Shard& from, ShardInfo& to, Check& check) {
  Get(from.tensor(), to.tensor, check);
  const auto dims = static_cast<int>(to.tensor.shape.size());
  if (!check.That(from.offset_size() == dims && from.size_size() == dims,
                  StrCat("box and shape of ", to.tensor.name, " differ in dimensions")))
    return;
  to.box.offset.assign(from.offset().begin(), from.offset().end());
  to.box.size.assign(from.size().begin(), from.size().end());
  to.declared = from.declared();
}

void Put(const Member& from, pb::Member& to) {
  Put(from.name, *to.mutable_name());
  to.set_incarnation(from.incarnation);
  for (const auto& address : from.addresses) to.add_addresses(address);
}
void Get(const pb::Member& from, Member& to, Check& check) {
  Get(from.name(), to.name, check);
  to.incarnation = from.incarnation();
  GetNames(from.addresses(), to.addresses, kMaxAddresses, kMaxNameBytes, "addresses", check);
}

void Put(const SourceGrant& from, pb::SourceGrant& to) {
  to.set_source(from.source);
  to.set_slot(from.slot);
  to.set_id(from.id);
}
void Get(const pb::SourceGrant& from, SourceGrant& to, Check&) {
  to = {.source = from.source(), .slot = from.slot(), .id = from.id()};
}

void Put(const RankBytes& from, pb::RankBytes& to) {
  Put(from.name, *to.mutable_name());
  to.set_bytes(from.bytes);
  to.set_seconds(from.seconds);
  to.set_compared(from.compared);
}
void Get(const pb::RankBytes& from, RankBytes& to, Check& check) {
  Get(from.name(), to.name, check);
  check.Time(from.seconds(), "seconds");
  to.bytes = from.bytes();
  to.seconds = from.seconds();
  to.compared = from.compared();
}

void Put(const RouteBytes& from, pb::RouteBytes& to) {
  Put(from.sender, *to.mutable_sender());
  Put(from.receiver, *to.mutable_receiver());
  to.set_bytes(from.bytes);
  to.set_seconds(from.seconds);
}
void Get(const pb::RouteBytes& from, RouteBytes& to, Check& check) {
  Get(from.sender(), to.sender, check);
  Get(from.receiver(), to.receiver, check);
  check.Time(from.seconds(), "seconds");
  to.bytes = from.bytes();
  to.seconds = from.seconds();
}

void Put(const EngineOutcome& from, pb::EngineOutcome& to) {
  to.set_engine(from.engine);
  to.set_committed(from.committed);
  Put(from.reason, *to.mutable_reason());
  to.set_rank(from.rank);
}
void Get(const pb::EngineOutcome& from, EngineOutcome& to, Check& check) {
  check.Name(from.engine(), kMaxNameBytes, "engine");
  to.engine = from.engine();
  to.committed = from.committed();
  Get(from.reason(), to.reason, check);
  check.That(from.rank() >= -1 && from.rank() < static_cast<int64_t>(kMaxWorkers), "rank is no rank");
  to.rank = from.rank();
}

std::string BytesOf(const std::vector<TensorDigest>& digests) {
  std::string bytes(digests.size() * kDigestBytes, '\0');
  char* at = bytes.data();
  for (const TensorDigest& digest : digests)
    for (const uint64_t half : {digest.high, digest.low})
      for (int shift = 0; shift < 64; shift += 8) *at++ = static_cast<char>(half >> shift & 0xFF);
  return bytes;
}
std::vector<TensorDigest> DigestsFrom(std::string_view bytes, Check& check) {
  std::vector<TensorDigest> digests;
  if (!check.That(bytes.size() % kDigestBytes == 0, "digests is not a multiple of 16 bytes") ||
      !check.Count(bytes.size() / kDigestBytes, kMaxShards, "digests"))
    return digests;
  const auto half = [&](size_t at) {
    uint64_t value = 0;
    for (size_t i = 0; i < 8; ++i) value |= uint64_t{static_cast<uint8_t>(bytes[at + i])} << 8 * i;
    return value;
  };
  for (size_t at = 0; at < bytes.size(); at += kDigestBytes)
    digests.push_back({.high = half(at), .low = half(at + 8)});
  check.That(std::ranges::all_of(digests,
                                 [](const auto& d) { return d.high < kDigestPrime && d.low < kDigestPrime; }),
             "a digest is out of range");
  return digests;
}

void Put(const LandingMap& from, pb::LandingMap& to) {
  to.set_epoch(from.epoch);
  for (const auto& region : from.regions) to.add_regions(region);
  to.mutable_places()->Reserve(static_cast<int>(from.places.size()));
  for (const auto& place : from.places) {
    auto& added = *to.add_places();
    added.set_region(place.region);
    added.set_offset(place.offset);
    added.set_shard(place.shard);
    added.set_part(place.part);
  }
}
void Get(const pb::LandingMap& from, LandingMap& to, Check& check) {
  if (!check.Count(static_cast<size_t>(from.regions_size()), kMaxRegions, "regions") ||
      !check.Count(static_cast<size_t>(from.places_size()), kMaxShards, "places")) {
    return;
  }
  to.epoch = from.epoch();
  for (const auto& region : from.regions()) {
    if (check.Size(region.size(), kMaxDescriptorBytes, "region")) to.regions.push_back(region);
  }
  to.places.reserve(static_cast<size_t>(from.places_size()));
  for (const auto& place : from.places()) {
    check.That(place.region() < to.regions.size(), "place names a region that the map does not hold");
    to.places.push_back({.region = place.region(),
                         .offset = place.offset(),
                         .shard = place.shard(),
                         .part = check.Part(place.part())});
  }
}

}  // namespace weightcast::wire
