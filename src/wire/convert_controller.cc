#include "wire/control.pb.h"
#include "wire/convert.h"

namespace weightcast::wire {
namespace {

void PutIn(const Welcome& from, pb::ControllerMessage& message) {
  Put(from.term, *message.mutable_welcome()->mutable_term());
  Put(from.run, *message.mutable_welcome()->mutable_run());
  message.mutable_welcome()->set_lease_seconds(from.lease_seconds);
}
void PutIn(const Refused& from, pb::ControllerMessage& message) {
  Put(from.reason, *message.mutable_refused()->mutable_reason());
}
void PutIn(const Plan& from, pb::ControllerMessage& message) {
  auto& to = *message.mutable_plan();
  to.set_epoch(from.epoch);
  Put(from.run, *to.mutable_run());
  to.set_table(from.table);
  to.set_table_file(from.table_file);
  PutAll(from.peers, to.mutable_peers());
  to.set_gives(from.gives);
}
void PutIn(const PeerLanding& from, pb::ControllerMessage& message) {
  message.mutable_peer_landing()->set_destination(from.destination);
  Put(from.map, *message.mutable_peer_landing()->mutable_map());
}
void PutIn(const Superseded& from, pb::ControllerMessage& message) {
  Put(from.version, *message.mutable_superseded()->mutable_version());
}
void PutIn(const GrantRequest& from, pb::ControllerMessage& message) {
  Put(from.update, *message.mutable_grant_request()->mutable_update());
  Put(from.version, *message.mutable_grant_request()->mutable_version());
  message.mutable_grant_request()->set_part(from.part);
}
void PutIn(const Start& from, pb::ControllerMessage& message) {
  auto& to = *message.mutable_start();
  Put(from.update, *to.mutable_update());
  Put(from.version, *to.mutable_version());
  to.set_destination(from.destination);
  to.set_slot(from.slot);
  to.set_grant(from.grant);
  to.set_part(from.part);
  to.set_compares(from.compares);
}
void PutIn(const SourceDigests& from, pb::ControllerMessage& message) {
  auto& to = *message.mutable_source_digests();
  Put(from.update, *to.mutable_update());
  to.set_source(from.source);
  to.set_part(from.part);
  to.set_digests(BytesOf(from.digests));
}
void PutIn(const Commit& from, pb::ControllerMessage& message) {
  Put(from.update, *message.mutable_commit()->mutable_update());
}
void PutIn(const Serve& from, pb::ControllerMessage& message) {
  Put(from.update, *message.mutable_serve()->mutable_update());
}
void PutIn(const Stop& from, pb::ControllerMessage& message) {
  Put(from.update, *message.mutable_stop()->mutable_update());
  message.mutable_stop()->set_destination(from.destination);
}
void PutIn(const Abort& from, pb::ControllerMessage& message) {
  Put(from.update, *message.mutable_abort()->mutable_update());
  Put(from.reason, *message.mutable_abort()->mutable_reason());
  message.mutable_abort()->set_started(from.started);
  Put(from.version, *message.mutable_abort()->mutable_version());
}
void PutIn(const Release& from, pb::ControllerMessage& message) {
  Put(from.update, *message.mutable_release()->mutable_update());
  Put(from.version, *message.mutable_release()->mutable_version());
}
void PutIn(const Done& from, pb::ControllerMessage& message) {
  auto& to = *message.mutable_done();
  Put(from.update, *to.mutable_update());
  Put(from.version, *to.mutable_version());
  to.set_met_policy(from.met_policy);
  Put(from.reason, *to.mutable_reason());
  PutAll(from.engines, to.mutable_engines());
  PutAll(from.senders, to.mutable_senders());
  PutAll(from.receivers, to.mutable_receivers());
  PutAll(from.routes, to.mutable_routes());
  to.set_seconds(from.seconds);
}
void PutIn(const Lost& from, pb::ControllerMessage& message) {
  Put(from.name, *message.mutable_lost()->mutable_name());
  Put(from.reason, *message.mutable_lost()->mutable_reason());
}
void PutIn(const Steer& from, pb::ControllerMessage& message) {
  auto& to = *message.mutable_steer();
  to.set_order(from.order);
  to.set_move(static_cast<uint32_t>(from.move));
  Put(from.version, *to.mutable_version());
  Put(from.reason, *to.mutable_reason());
}
void PutIn(const Controlled&, pb::ControllerMessage& message) { message.mutable_controlled(); }
void PutIn(const Heartbeat&, pb::ControllerMessage& message) { message.mutable_heartbeat(); }
void PutIn(const Offered& from, pb::ControllerMessage& message) {
  PutAll(from.tensors, message.mutable_offered()->mutable_tensors());
}

Offered GetOffered(const pb::Offered& from, Check& check) {
  Offered to;
  GetAll(from.tensors(), to.tensors, kMaxShards, "tensors", check);
  return to;
}
Welcome GetWelcome(const pb::Welcome& from, Check& check) {
  Welcome to{.term = {}, .run = {}, .lease_seconds = from.lease_seconds()};
  Get(from.term(), to.term, check);
  Get(from.run(), to.run, check);
  check.Time(from.lease_seconds(), "lease");
  return to;
}
Refused GetRefused(const pb::Refused& from, Check& check) {
  Refused to;
  check.That(from.reason().code() != 0, "the reason is 'ok'");
  Get(from.reason(), to.reason, check);
  return to;
}
Plan GetPlan(const pb::Plan& from, Check& check) {
  Plan to{.epoch = from.epoch(), .run = {}, .table = {}, .table_file = {}, .peers = {}};
  Get(from.run(), to.run, check);
  check.Size(from.table().size(), kMaxMessageBytes, "table");
  check.Name(from.table_file(), kMaxPathBytes, "table_file");
  to.table = from.table();
  to.table_file = from.table_file();
  GetAll(from.peers(), to.peers, kMaxWorkers, "peers", check);
  to.gives = from.gives();
  return to;
}
PeerLanding GetPeerLanding(const pb::PeerLanding& from, Check& check) {
  PeerLanding to{.destination = from.destination(), .map = {}};
  Get(from.map(), to.map, check);
  return to;
}
Superseded GetSuperseded(const pb::Superseded& from, Check& check) {
  Superseded to;
  Get(from.version(), to.version, check);
  return to;
}
GrantRequest GetGrantRequest(const pb::GrantRequest& from, Check& check) {
  GrantRequest to{.update = {}, .version = {}, .part = check.Part(from.part())};
  Get(from.update(), to.update, check);
  Get(from.version(), to.version, check);
  return to;
}
Start GetStart(const pb::Start& from, Check& check) {
  Start to{.update = {},
           .version = {},
           .destination = from.destination(),
           .slot = from.slot(),
           .grant = from.grant(),
           .part = check.Part(from.part()),
           .compares = from.compares()};
  Get(from.update(), to.update, check);
  Get(from.version(), to.version, check);
  return to;
}
SourceDigests GetSourceDigests(const pb::SourceDigests& from, Check& check) {
  SourceDigests to{.update = {},
                   .source = from.source(),
                   .part = check.Part(from.part()),
                   .digests = DigestsFrom(from.digests(), check)};
  Get(from.update(), to.update, check);
  return to;
}
/// Messages that hold an update id alone.
template <typename To, typename From>
To GetNamed(const From& from, Check& check) {
  To to;
  Get(from.update(), to.update, check);
  return to;
}
Stop GetStop(const pb::Stop& from, Check& check) {
  Stop to = GetNamed<Stop>(from, check);
  to.destination = from.destination();
  return to;
}
Abort GetAbort(const pb::Abort& from, Check& check) {
  Abort to = GetNamed<Abort>(from, check);
  Get(from.reason(), to.reason, check);
  Get(from.version(), to.version, check);
  to.started = from.started();
  return to;
}
Release GetRelease(const pb::Release& from, Check& check) {
  Release to = GetNamed<Release>(from, check);
  Get(from.version(), to.version, check);
  return to;
}
Done GetDone(const pb::Done& from, Check& check) {
  Done to = GetNamed<Done>(from, check);
  Get(from.version(), to.version, check);
  to.met_policy = from.met_policy();
  Get(from.reason(), to.reason, check);
  GetAll(from.engines(), to.engines, kMaxWorkers, "engines", check);
  GetAll(from.senders(), to.senders, kMaxWorkers, "senders", check);
  GetAll(from.receivers(), to.receivers, kMaxWorkers, "receivers", check);
  GetAll(from.routes(), to.routes, kMaxPairs, "routes", check);
  check.Time(from.seconds(), "seconds");
  to.seconds = from.seconds();
  return to;
}
Lost GetLost(const pb::Lost& from, Check& check) {
  Lost to;
  Get(from.name(), to.name, check);
  Get(from.reason(), to.reason, check);
  return to;
}

Steer GetSteer(const pb::Steer& from, Check& check) {
  Steer to{.order = from.order(),
           .move = check.Value(from.move(), Move::kEvict, "move"),
           .version = {},
           .reason = {}};
  Get(from.version(), to.version, check);
  Get(from.reason(), to.reason, check);
  return to;
}

}  // namespace

void Put(const ControllerMessage& from, pb::ControllerMessage& to) {
  std::visit([&](const auto& message) { PutIn(message, to); }, from);
}

void Get(const pb::ControllerMessage& from, ControllerMessage& to, Check& check) {
  using pb::ControllerMessage;
  switch (from.message_case()) {
    case ControllerMessage::kWelcome:
      to = GetWelcome(from.welcome(), check);
      return;
    case ControllerMessage::kRefused:
      to = GetRefused(from.refused(), check);
      return;
    case ControllerMessage::kPlan:
      to = GetPlan(from.plan(), check);
      return;
    case ControllerMessage::kPeerLanding:
      to = GetPeerLanding(from.peer_landing(), check);
      return;
    case ControllerMessage::kSuperseded:
      to = GetSuperseded(from.superseded(), check);
      return;
    case ControllerMessage::kGrantRequest:
      to = GetGrantRequest(from.grant_request(), check);
      return;
    case ControllerMessage::kStart:
      to = GetStart(from.start(), check);
      return;
    case ControllerMessage::kCommit:
      to = GetNamed<Commit>(from.commit(), check);
      return;
    case ControllerMessage::kServe:
      to = GetNamed<Serve>(from.serve(), check);
      return;
    case ControllerMessage::kStop:
      to = GetStop(from.stop(), check);
      return;
    case ControllerMessage::kAbort:
      to = GetAbort(from.abort(), check);
      return;
    case ControllerMessage::kRelease:
      to = GetRelease(from.release(), check);
      return;
    case ControllerMessage::kDone:
      to = GetDone(from.done(), check);
      return;
    case ControllerMessage::kLost:
      to = GetLost(from.lost(), check);
      return;
    case ControllerMessage::kSteer:
      to = GetSteer(from.steer(), check);
      return;
    case ControllerMessage::kControlled:
      to = Controlled{};
      return;
    case ControllerMessage::kHeartbeat:
      to = Heartbeat{};
      return;
    case ControllerMessage::kOffered:
      to = GetOffered(from.offered(), check);
      return;
    case ControllerMessage::kSourceDigests:
      to = GetSourceDigests(from.source_digests(), check);
      return;
    case ControllerMessage::MESSAGE_NOT_SET:
      check.That(false, "nothing that this protocol version knows");
  }
}

}  // namespace weightcast::wire
