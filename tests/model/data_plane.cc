#include "tests/model/arrivals.h"
#include "tests/model/model.h"

// One-sided writes, grants and fences: what endpoint/ and worker/{sender,receiver} promise.
namespace weightcast::model {

/// Which boxes of a destination come from a source of the plan. Trainers hold a box each, unless they are
/// replicas; ranks of engines hold all.
uint8_t Model::BoxesOf(int sources, int number, int destination) const {
  uint8_t boxes = 0;
  for (int box = 0; box < kBoxes; ++box)
    if ((box + kBoxes * destination) % sources == number) boxes = static_cast<uint8_t>(boxes | 1 << box);
  return boxes;
}

/// The boxes of one part of an update.
uint8_t Model::BoxesOfPart(uint32_t part) const {
  return config_.parts == 1 ? (1U << kBoxes) - 1 : static_cast<uint8_t>(1U << part);
}

/// The sending that a write does.
uint32_t Model::SendingOf(const Write& w) {
  return w.update | static_cast<uint32_t>(w.destination) << 16 | static_cast<uint32_t>(w.part) << 24;
}

/// What lands: the memory of the source as it is now, as long as the sender reads it.
std::array<Content, kBoxes> Model::BytesOf(const World& world, int write) const {
  const Write& w = world.writes[write];
  if (w.job == Job::kGone && config_.pull) return {kTorn, kTorn};  // The owner may change it under the copy.
  if (w.job == Job::kGone) return w.captured;
  Process source = world.processes[w.source];
  if (IsTrainer(w.source)) return {source.content, source.content};
  return LandingOf(source);
}

void Model::BeginWrite(World& world, int source, const Effect& effect) {
  const Process& sender = world.processes[source];
  const protocol::Plan& plan = PlanOf(IsTrainer(source) ? sender.plan : sender.giving);
  const protocol::Member& peer = plan.peers.at(effect.a);
  const int slot = SlotOf(peer.name);
  const Process& target = world.processes[slot];
  const auto serial = static_cast<uint8_t>(effect.c & 0xff);
  const bool granted =
      !Gone(world, peer) && target.grants != GrantState::kNone && target.grant_serial == serial;
  const uint32_t part = effect.c >> 8 & 0xff;
  const auto boxes =
      static_cast<uint8_t>(BoxesOf(plan.table[0], plan.table[1], effect.a) & BoxesOfPart(part));
  if (!IsTrainer(source)) CheckGiven(world, source, static_cast<Content>(effect.c >> 16), boxes);
  for (Write& w : world.writes) {
    if (w.job != Job::kNone) continue;
    w = Write{.update = effect.b,
              .part = static_cast<uint16_t>(part),
              .job = Job::kSending,
              .wire = granted ? Wire::kOpen : Wire::kOff,
              .landed = boxes == 0 ? uint8_t{2} : uint8_t{0},  // Nothing is to be sent.
              .serial = serial,
              .destination = effect.a,
              .source = static_cast<uint8_t>(source),
              .target = static_cast<uint8_t>(slot),
              .boxes = boxes,
              .captured = {}};
    return;
  }
  Fail("model", "more writes at once than the model has room for");
}

void Model::StopWrite(World& world, int source, const Effect& effect) {
  for (Write& w : world.writes) {
    const bool meant = w.source == source && w.update == effect.b && w.destination == effect.a;
    if (meant && w.job == Job::kSending) w.job = Job::kEnding;
  }
}

void Model::Land(World& world, int write, bool half) {
  Write& w = world.writes[write];
  CheckLanding(world, write);
  auto& memory = LandingOf(world.processes[w.target]);
  const auto bytes = BytesOf(world, write);
  for (int box = 0; box < kBoxes; ++box)
    if ((w.boxes >> box & 1) != 0) memory[box] = half ? kTorn : bytes[box];
  w.landed = half ? 1 : 2;
  if (config_.pull && !half) w.wire = Wire::kPulled;
  if (world.processes[w.target].life != Life::kDead) CheckLanded(world, w.target);
  if (config_.landing != protocol::Landing::kInPlace) return;
  for (int slot = config_.trainers; slot < processes(); ++slot) CheckServed(world, slot);
}

/// Dropped once the grant is closed.
void Model::Signal(World& world, int write) {
  const Write& w = world.writes[write];
  const int slot = w.target;
  Process& target = world.processes[slot];
  if (target.life != Life::kRunning || target.grants != GrantState::kOpen) return;
  const auto others = static_cast<uint8_t>(~BoxesOfPart(machines_.rank(target.machine).part));
  const auto all = [&] { return AllArrived(target.arrived | (others & ((1U << kBoxes) - 1)), kBoxes); };
  if (target.grant_serial != w.serial || all()) return;
  for (int box = 0; box < kBoxes; ++box)
    if ((w.boxes >> box & 1) != 0) target.arrived = AddArrival(target.arrived, box);
  if (all()) FeedRank(world, slot, In::kArrived, target.grant);
}

/// Whoever still sends learns that it may not.
void Model::Fence(World& world, int slot) {
  const uint16_t update = world.processes[slot].grant;
  CloseGrants(world, slot);
  FeedRank(world, slot, In::kFenced, update);
}

/// What is still written lands in the old buffer, where nobody looks.
void Model::SetAside(World& world, int slot) {
  const uint16_t update = world.processes[slot].grant;
  for (Write& w : world.writes)
    if (w.target == slot && w.serial == world.processes[slot].grant_serial) w.wire = Wire::kOff;
  CloseGrants(world, slot);
  world.processes[slot].spare.fill(kGarbage);
  FeedPeerSource(world, slot, In::kReclaim, 1);
  FeedRank(world, slot, In::kSetAside, update);
}

void Model::CloseGrants(World& world, int slot) {
  Process& p = world.processes[slot];
  for (Write& w : world.writes) {
    if (w.job == Job::kNone || w.target != slot || w.serial != p.grant_serial) continue;
    if (w.wire == Wire::kPulling) continue;  // Only where the grant was given up too early.
    w.wire = Wire::kOff;
    if (w.job == Job::kGone) w = Write{};
  }
  p.grants = GrantState::kNone;
  p.grant = 0;
  p.arrived = 0;
}

/// Its sender reads no more, or is no more: what is on the wire is fixed; what was ordered and not begun is
/// not begun any more.
void Model::LeaveWrite(World& world, int write) {
  Write& w = world.writes[write];
  if (!config_.pull) w.captured = BytesOf(world, write);
  if (config_.pull && w.wire == Wire::kOpen) w.wire = Wire::kOff;
  w.job = Job::kGone;
}

/// The sender has let go of its sources. Returns the name of the sending.
uint32_t Model::LetGo(World& world, int write) {
  Write& w = world.writes[write];
  const uint32_t name = SendingOf(w);
  LeaveWrite(world, write);
  if (w.wire == Wire::kOff) w = Write{};
  return name;
}

void Model::SendEnd(World& world, int write) {
  const int source = world.writes[write].source;
  const uint32_t name = LetGo(world, write);
  FeedSource(world, source, In::kSendEnded, name);
  FeedSource(world, source, In::kSendFenced, name);
}

void Model::SendFail(World& world, int write, In how) {
  Write& w = world.writes[write];
  w.job = Job::kEnding;
  FeedSource(world, w.source, how, SendingOf(w));
}

void Model::SendFence(World& world, int write) {
  const int source = world.writes[write].source;
  FeedSource(world, source, In::kSendFenced, LetGo(world, write));
}

}  // namespace weightcast::model
