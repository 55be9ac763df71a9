#include "wire/control.pb.h"
#include "wire/convert.h"

namespace weightcast::wire {
namespace {

void PutIn(const Hello& from, pb::WorkerMessage& message) {
  auto& to = *message.mutable_hello();
  to.set_protocol(from.protocol);
  to.set_job(from.job);
  to.set_model(from.model);
  Put(from.name, *to.mutable_name());
  to.set_world_size(from.world_size);
  to.set_incarnation(from.incarnation);
  for (const auto& address : from.addresses) to.add_addresses(address);
  to.set_host(from.host);
  to.set_landing(static_cast<uint32_t>(from.landing));
  to.set_state(static_cast<uint32_t>(from.state));
  Put(from.version, *to.mutable_version());
  Put(from.newest, *to.mutable_newest());
  Put(from.run, *to.mutable_run());
}
void PutIn(const Register& from, pb::WorkerMessage& message) {
  auto& to = *message.mutable_registration();
  PutAll(from.shards, to.mutable_shards());
  to.set_rules(from.rules);
  to.set_landing(static_cast<uint32_t>(from.landing));
  to.set_state(static_cast<uint32_t>(from.state));
  Put(from.version, *to.mutable_version());
  to.set_withholds(!from.shares);
  Put(from.landed, *to.mutable_landed());
  to.set_controlled(from.controlled);
  Put(from.newest, *to.mutable_newest());
  for (const auto& pattern : from.unwanted) to.add_unwanted(pattern);
  to.set_group_model(from.group_model);
  to.set_further_parts(from.parts - 1);
}
void PutIn(const LandingMap& from, pb::WorkerMessage& message) { Put(from, *message.mutable_landing_map()); }
void PutIn(const Prepared& from, pb::WorkerMessage& message) {
  auto& to = *message.mutable_prepared();
  to.set_epoch(from.epoch);
  for (const auto& connection : from.connections) to.add_connections(connection);
}
void PutIn(const Published& from, pb::WorkerMessage& message) {
  message.mutable_published()->set_number(from.number);
  message.mutable_published()->set_hold(from.hold);
  message.mutable_published()->set_label(from.label);
  Put(from.run, *message.mutable_published()->mutable_run());
}
void PutIn(const Granted& from, pb::WorkerMessage& message) {
  Put(from.update, *message.mutable_granted()->mutable_update());
  PutAll(from.grants, message.mutable_granted()->mutable_grants());
  message.mutable_granted()->set_part(from.part);
  message.mutable_granted()->set_compares(from.compares);
}
void PutIn(const Ready& from, pb::WorkerMessage& message) {
  auto& to = *message.mutable_ready();
  Put(from.update, *to.mutable_update());
  to.set_bytes(from.bytes);
  to.set_seconds(from.seconds);
  to.set_part(from.part);
  to.set_compared(from.compared);
  for (const SourceBytes& source : from.sources) {
    auto& put = *to.add_sources();
    put.set_source(source.source);
    put.set_bytes(source.bytes);
    put.set_seconds(source.seconds);
  }
}
void PutIn(const Committed& from, pb::WorkerMessage& message) {
  Put(from.update, *message.mutable_committed()->mutable_update());
}
void PutIn(const Serving& from, pb::WorkerMessage& message) {
  Put(from.update, *message.mutable_serving()->mutable_update());
  Put(from.version, *message.mutable_serving()->mutable_version());
}
void PutIn(const Aborted& from, pb::WorkerMessage& message) {
  Put(from.update, *message.mutable_aborted()->mutable_update());
  message.mutable_aborted()->set_lost(from.lost);
  Put(from.landed, *message.mutable_aborted()->mutable_landed());
}
void PutIn(const Failed& from, pb::WorkerMessage& message) {
  auto& to = *message.mutable_failed();
  Put(from.update, *to.mutable_update());
  to.set_destination(from.destination);
  to.set_source(from.source + 1);
  Put(from.reason, *to.mutable_reason());
}
void PutIn(const SentDigests& from, pb::WorkerMessage& message) {
  auto& to = *message.mutable_sent_digests();
  Put(from.update, *to.mutable_update());
  to.set_destination(from.destination);
  to.set_part(from.part);
  to.set_digests(BytesOf(from.digests));
}
void PutIn(const Suspended&, pb::WorkerMessage& message) { message.mutable_suspended(); }
void PutIn(const Steered& from, pb::WorkerMessage& message) {
  message.mutable_steered()->set_order(from.order);
  Put(from.status, *message.mutable_steered()->mutable_status());
}
void PutIn(const Cancel& from, pb::WorkerMessage& message) {
  message.mutable_cancel()->set_number(from.number);
}
void PutIn(const Heartbeat&, pb::WorkerMessage& message) { message.mutable_heartbeat(); }
void PutIn(const Goodbye&, pb::WorkerMessage& message) { message.mutable_goodbye(); }
void PutIn(const AskOffered&, pb::WorkerMessage& message) { message.mutable_ask_offered(); }

Hello GetHello(const pb::Hello& from, Check& check) {
  Hello to;
  check.Name(from.job(), kMaxNameBytes, "job");
  check.Name(from.model(), kMaxNameBytes, "model");
  check.Name(from.host(), kMaxNameBytes, "host");
  check.That(from.incarnation() != 0, "incarnation is 0");
  to.protocol = from.protocol();
  to.job = from.job();
  to.model = from.model();
  Get(from.name(), to.name, check);
  to.world_size = from.world_size();
  to.incarnation = from.incarnation();
  GetNames(from.addresses(), to.addresses, kMaxAddresses, kMaxNameBytes, "addresses", check);
  to.host = from.host();
  to.landing = check.Value(from.landing(), Landing::kShadow, "landing");
  to.state = check.Value(from.state(), EngineState::kFailed, "state");
  Get(from.version(), to.version, check);
  Get(from.newest(), to.newest, check);
  Get(from.run(), to.run, check);
  return to;
}
Published GetPublished(const pb::Published& from, Check& check) {
  check.That(from.number() >= 0 && from.number() <= kMaxVersionNumber,
             StrCat("the number of a version is not between 0 and ", kMaxVersionNumber));
  const weightcast::Status label = CheckLabel(from.label());
  check.That(label.ok(), label.message());
  Published to{.number = from.number(), .run = {}, .hold = from.hold(), .label = from.label()};
  Get(from.run(), to.run, check);
  return to;
}
Register GetRegister(const pb::Register& from, Check& check) {
  Register to;
  GetAll(from.shards(), to.shards, kMaxShards, "shards", check);
  check.Size(from.rules().size(), kMaxRulesBytes, "rules");
  to.rules = from.rules();
  to.landing = check.Value(from.landing(), Landing::kShadow, "landing");
  to.state = check.Value(from.state(), EngineState::kFailed, "state");
  Get(from.version(), to.version, check);
  to.shares = !from.withholds();
  to.controlled = from.controlled();
  Get(from.landed(), to.landed, check);
  Get(from.newest(), to.newest, check);
  GetNames(from.unwanted(), to.unwanted, kMaxPatterns, kMaxTensorNameBytes, "unwanted", check);
  check.Name(from.group_model(), kMaxNameBytes, "group_model");
  to.group_model = from.group_model();
  to.parts = check.Part(from.further_parts()) + 1;
  return to;
}
LandingMap GetLandingMap(const pb::LandingMap& from, Check& check) {
  LandingMap to;
  Get(from, to, check);
  return to;
}
Prepared GetPrepared(const pb::Prepared& from, Check& check) {
  Prepared to{.epoch = from.epoch()};
  GetNames(from.connections(), to.connections, kMaxWorkers, kMaxConnectionBytes, "connections", check);
  return to;
}
Granted GetGranted(const pb::Granted& from, Check& check) {
  Granted to;
  Get(from.update(), to.update, check);
  GetAll(from.grants(), to.grants, kMaxWorkers, "grants", check);
  to.part = check.Part(from.part());
  to.compares = from.compares();
  return to;
}
Ready GetReady(const pb::Ready& from, Check& check) {
  Ready to{.update = {}, .bytes = from.bytes(), .seconds = from.seconds()};
  Get(from.update(), to.update, check);
  check.Time(from.seconds(), "seconds");
  to.part = check.Part(from.part());
  to.compared = from.compared();
  if (!check.Count(static_cast<size_t>(from.sources_size()), kMaxWorkers, "sources")) return to;
  for (const auto& source : from.sources()) {
    check.Time(source.seconds(), "seconds");
    to.sources.push_back({.source = source.source(), .bytes = source.bytes(), .seconds = source.seconds()});
  }
  return to;
}
SentDigests GetSentDigests(const pb::SentDigests& from, Check& check) {
  SentDigests to{.update = {},
                 .destination = from.destination(),
                 .part = check.Part(from.part()),
                 .digests = DigestsFrom(from.digests(), check)};
  Get(from.update(), to.update, check);
  return to;
}
Committed GetCommitted(const pb::Committed& from, Check& check) {
  Committed to;
  Get(from.update(), to.update, check);
  return to;
}
Serving GetServing(const pb::Serving& from, Check& check) {
  Serving to;
  Get(from.update(), to.update, check);
  Get(from.version(), to.version, check);
  return to;
}
Aborted GetAborted(const pb::Aborted& from, Check& check) {
  Aborted to{.update = {}, .lost = from.lost()};
  Get(from.update(), to.update, check);
  Get(from.landed(), to.landed, check);
  return to;
}
Failed GetFailed(const pb::Failed& from, Check& check) {
  Failed to{.update = {}, .destination = from.destination(), .reason = {}};
  check.That(from.destination() >= -1 && from.destination() < static_cast<int64_t>(kMaxWorkers),
             "destination is no number of a rank");
  check.That(from.reason().code() != 0, "the reason of a failure is 'ok'");
  check.That(from.source() >= 0 && from.source() <= static_cast<int64_t>(kMaxWorkers),
             "source is no number of a rank");
  to.source = from.source() - 1;
  Get(from.update(), to.update, check);
  Get(from.reason(), to.reason, check);
  return to;
}

Steered GetSteered(const pb::Steered& from, Check& check) {
  Steered to{.order = from.order(), .status = {}};
  Get(from.status(), to.status, check);
  return to;
}

}  // namespace

void Put(const WorkerMessage& from, pb::WorkerMessage& to) {
  std::visit([&](const auto& message) { PutIn(message, to); }, from);
}

void Get(const pb::WorkerMessage& from, WorkerMessage& to, Check& check) {
  using pb::WorkerMessage;
  switch (from.message_case()) {
    case WorkerMessage::kHello:
      to = GetHello(from.hello(), check);
      return;
    case WorkerMessage::kRegistration:
      to = GetRegister(from.registration(), check);
      return;
    case WorkerMessage::kLandingMap:
      to = GetLandingMap(from.landing_map(), check);
      return;
    case WorkerMessage::kPrepared:
      to = GetPrepared(from.prepared(), check);
      return;
    case WorkerMessage::kPublished:
      to = GetPublished(from.published(), check);
      return;
    case WorkerMessage::kGranted:
      to = GetGranted(from.granted(), check);
      return;
    case WorkerMessage::kReady:
      to = GetReady(from.ready(), check);
      return;
    case WorkerMessage::kCommitted:
      to = GetCommitted(from.committed(), check);
      return;
    case WorkerMessage::kServing:
      to = GetServing(from.serving(), check);
      return;
    case WorkerMessage::kAborted:
      to = GetAborted(from.aborted(), check);
      return;
    case WorkerMessage::kFailed:
      to = GetFailed(from.failed(), check);
      return;
    case WorkerMessage::kSuspended:
      to = Suspended{};
      return;
    case WorkerMessage::kSteered:
      to = GetSteered(from.steered(), check);
      return;
    case WorkerMessage::kCancel:
      to = Cancel{.number = from.cancel().number()};
      return;
    case WorkerMessage::kHeartbeat:
      to = Heartbeat{};
      return;
    case WorkerMessage::kGoodbye:
      to = Goodbye{};
      return;
    case WorkerMessage::kAskOffered:
      to = AskOffered{};
      return;
    case WorkerMessage::kSentDigests:
      to = GetSentDigests(from.sent_digests(), check);
      return;
    case WorkerMessage::MESSAGE_NOT_SET:
      check.That(false, "nothing that this protocol version knows");
  }
}

}  // namespace weightcast::wire
