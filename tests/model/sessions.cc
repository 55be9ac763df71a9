#include <algorithm>

#include "tests/model/model.h"

// Processes, the controller, and the sessions between them.
namespace weightcast::model {
namespace {

uint64_t IncarnationOf(int slot, uint8_t incarnation) {
  return static_cast<uint64_t>(slot + 1) * 16 + incarnation;
}

}  // namespace

protocol::WorkerName Model::NameOf(int slot) const {
  if (IsTrainer(slot))
    return {.role = protocol::Role::kTrainer, .engine = {}, .rank = static_cast<uint32_t>(slot)};
  return {.role = protocol::Role::kInference,
          .engine = std::string(1, static_cast<char>('A' + EngineOf(slot))),
          .rank = static_cast<uint32_t>((slot - config_.trainers) % config_.ranks)};
}
int Model::SlotOf(const protocol::WorkerName& name) const {
  if (name.role == protocol::Role::kTrainer) return static_cast<int>(name.rank);
  return config_.trainers + (name.engine[0] - 'A') * config_.ranks + static_cast<int>(name.rank);
}
/// Of a session that the controller knows, also when its process has died.
int Model::SlotOfSession(const World& world, uint16_t session) const {
  for (int slot = 0; slot < processes(); ++slot)
    if (world.processes[slot].session == session || world.processes[slot].stale == session) return slot;
  return -1;
}

// --- Processes ------------------------------------------------------------------------------------------

void Model::Start(World& world, int slot) {
  Process& p = world.processes[slot];
  const uint8_t incarnation = p.incarnation;
  const uint16_t stale = p.stale;
  const uint8_t former = p.former;
  const Ledger ledger = p.ledger;
  p = Process{};
  p.ledger = ledger;
  p.former = former;
  p.life = Life::kRunning;
  p.incarnation = static_cast<uint8_t>(incarnation + 1);
  p.stale = stale;
  p.machine = IsTrainer(slot) ? machines_.NewTrainer() : machines_.NewRank(NameOf(slot));
  p.peer_source = machines_.NewPeerSource();
  p.content = kGarbage;
  p.live.fill(kGarbage);
  p.spare.fill(kGarbage);
}

/// Its memory is gone; what it has put on the wire is not.
void Model::Kill(World& world, int slot) {
  Process& p = world.processes[slot];
  for (int write = 0; write < kMaxWrites; ++write) {
    Write& w = world.writes[write];
    if (w.job == Job::kNone) continue;
    if (w.target == slot) w.wire = Wire::kOff;
    if (w.source == slot && w.job != Job::kGone) LeaveWrite(world, write);
    if (w.job == Job::kGone && w.wire == Wire::kOff) w = Write{};
  }
  Process dead{};
  dead.incarnation = p.incarnation;
  dead.stale = p.stale;
  dead.ledger = p.ledger;
  dead.former = std::max(p.former, p.run);
  if (p.link == Link::kLinked) {
    dead.link = Link::kLinked;
    dead.session = p.session;
    dead.up = p.up;
  } else if (p.session != 0) {
    dead.stale = p.session;
  }
  p = dead;
  for (uint32_t& straggler : world.stragglers)
    if (StragglerOf(straggler) == slot) straggler = 0;
}

// --- What a worker's client does --------------------------------------------------------------------------

void Model::Connect(World& world, int slot) {
  Process& p = world.processes[slot];
  protocol::Hello hello;
  hello.job = "default";
  hello.model = "m";
  hello.name = NameOf(slot);
  hello.world_size = IsTrainer(slot) ? config_.trainers : config_.ranks;
  hello.incarnation = IncarnationOf(slot, p.incarnation);
  hello.landing = config_.landing;
  if (IsTrainer(slot)) {
    const auto& state = machines_.trainer(p.machine);
    hello.run = state.run;
  } else {
    const auto& state = machines_.rank(p.machine);
    hello.state = state.state;
    hello.version = state.served;
    hello.newest = state.newest;
  }
  p.hello = machines_.Add(protocol::WorkerMessage(std::move(hello)));
  p.link = Link::kHello;
}

void Model::Say(World& world, int slot, uint32_t message) {
  Process& p = world.processes[slot];
  CheckSaid(world, slot, message);
  if (p.session == 0 || p.link == Link::kEnded) return;
  if (machines_.message(message).registers) p.dropping = 0;
  if (p.dropping == 0) p.up = machines_.Push(p.up, message);
}

void Model::SayRegistration(World& world, int slot) {
  const Process& p = world.processes[slot];
  protocol::Register registration;
  if (IsTrainer(slot)) {
    if (!machines_.trainer(p.machine).registered) return;
    return Say(world, slot, machines_.Add(protocol::WorkerMessage(registration)));
  }
  const auto& state = machines_.rank(p.machine);
  if (!state.registered) return;
  registration.landing = state.landing;
  registration.state = state.state;
  registration.version = state.served;
  registration.newest = state.newest;
  registration.shares = state.shares;
  registration.parts = state.parts;
  registration.landed = state.landed;
  Say(world, slot, machines_.Add(protocol::WorkerMessage(registration)));
  Say(world, slot, machines_.Add(protocol::WorkerMessage(protocol::LandingMap{})));
}

void Model::End(World& world, int slot) {
  world.processes[slot].link = Link::kEnded;
  if (!IsTrainer(slot)) FeedPeerSource(world, slot, In::kEnded, 0);
  Feed(world, slot, In::kEnded);
}

void Model::TakeDown(World& world, int slot, uint32_t message) {
  Process& p = world.processes[slot];
  const auto& value = std::get<protocol::ControllerMessage>(machines_.message(message).value);
  if (std::holds_alternative<protocol::Refused>(value)) {
    return End(world, slot);
  }
  if (const auto* plan = std::get_if<protocol::Plan>(&value)) {
    if (plan->gives) return TakeGivingPlan(world, slot, message);
    if (!IsTrainer(slot)) {
      const auto& peer_source = machines_.peer_source(p.peer_source);
      if (plan->epoch > peer_source.epoch && !worker::Lends(peer_source))
        FeedPeerSource(world, slot, In::kReclaim, 1);
    }
    p.plan = message;
    p.preparing = 1;
    return Feed(world, slot, In::kPlan, message);
  }
  if (!IsTrainer(slot)) {
    // Before the rank's own machine: what a new session makes void is given no more.
    const bool given = std::holds_alternative<protocol::Welcome>(value) ||
                       std::holds_alternative<protocol::Stop>(value) ||
                       std::holds_alternative<protocol::Release>(value);
    if (given) FeedPeerSource(world, slot, In::kMessage, message);
    if (std::holds_alternative<protocol::Start>(value)) {
      const Content held = CodeOf(worker::VersionToLend(machines_.rank(p.machine)));
      return FeedPeerSource(world, slot, In::kGive, message | uint32_t{held} << 24);
    }
  }
  Feed(world, slot, In::kMessage, message);
  if (!std::holds_alternative<protocol::Welcome>(value)) return;
  p.plan = 0;
  p.preparing = 0;
  // The user registers as soon as Connect has returned.
  const bool registered =
      IsTrainer(slot) ? machines_.trainer(p.machine).registered : machines_.rank(p.machine).registered;
  if (!registered) Feed(world, slot, In::kRegister, 0);
}

// --- The controller
// -----------------------------------------------------------------------------------------

void Model::KillController(World& world) {
  world.controller_lives = 0;
  world.controller = machines_.NewController();
  world.timers = 0;
  world.planning = 0;
  for (int slot = 0; slot < processes(); ++slot) {
    Process& p = world.processes[slot];
    p.session = p.stale = 0;
    p.up = p.hello = 0;
    p.ledger = {};
    if (p.link != Link::kEnded) p.link = Link::kNone;
  }
  for (uint32_t& straggler : world.stragglers)
    if ((straggler & kStragglerUp) != 0) straggler = 0;
}

void Model::StartController(World& world) {
  world.controller_lives = 1;
  ++world.term;
  world.last_session = 0;
}

/// A new session: what the old one had not delivered is lost, in both directions.
void Model::TakeHello(World& world, int slot) {
  Process& p = world.processes[slot];
  const uint32_t hello = std::exchange(p.hello, 0);
  p.session = ++world.last_session;
  p.link = Link::kLinked;
  p.up = p.down = 0;
  p.dropping = 1;
  FeedController(world, Ctl::kAttached, p.session, hello);
}

void Model::EndSession(World& world, uint16_t session, Link link) {
  for (int slot = 0; slot < processes(); ++slot) {
    Process& p = world.processes[slot];
    if (p.stale == session || p.session == session) p.ledger = {};
    if (p.stale == session) p.stale = 0;
    if (p.session != session) continue;
    p.session = 0;
    p.up = 0;
    p.link = p.life == Life::kDead ? Link::kNone : link;
    for (uint32_t& straggler : world.stragglers)
      if ((straggler & kStragglerUp) != 0 && StragglerOf(straggler) == slot) straggler = 0;
  }
}

void Model::FeedController(World& world, Ctl kind, uint16_t session, uint32_t arg) {
  const Taken taken = machines_.StepController(world.controller, world.term, kind, session, arg);
  world.controller = taken.next;
  if (kind == Ctl::kSaid) Hear(world, SlotOfSession(world, session), arg);
  for (uint32_t i = 0; i < taken.count; ++i) Carry(world, machines_.effect(taken.first + i));
}

void Model::Carry(World& world, const Effect& effect) {
  switch (effect.what) {
    case Do::kSend:
    case Do::kRefuse: {
      const int slot = SlotOfSession(world, effect.b);
      if (slot >= 0) {
        Process& p = world.processes[slot];
        Tell(world, slot, effect.c);
        if (p.session == effect.b && p.life != Life::kDead) p.down = machines_.Push(p.down, effect.c);
      }
      if (effect.what == Do::kRefuse) EndSession(world, effect.b, Link::kEnded);
      return;
    }
    case Do::kForget:
      return EndSession(world, effect.b, Link::kNone);
    case Do::kMakePlan:
      world.planning = static_cast<uint8_t>(effect.c);
      return;
    case Do::kHandOut:
      return HandOut(world, effect.c);
    case Do::kSetTimer:
      world.timers = static_cast<uint16_t>(world.timers | 1U << effect.a);
      return;
    case Do::kCancelTimer:
      world.timers = static_cast<uint16_t>(world.timers & ~(1U << effect.a));
      return;
    default:
      return;
  }
}

/// Each member learns its part: how many sources there are and its own number stand for the table.
void Model::HandOut(World& world, uint32_t epoch) {
  const auto& state = machines_.controller(world.controller);
  const auto& sources = state.plan.sources;
  const auto& destinations = state.plan.destinations;
  const auto member = [&](control::SessionId session, bool meets) {
    const auto worker = std::find_if(state.workers.begin(), state.workers.end(),
                                     [&](const control::Worker& w) { return w.session == session; });
    const int slot = static_cast<int>(worker->incarnation / 16) - 1;
    return protocol::Member{
        .name = NameOf(slot), .incarnation = meets ? worker->incarnation : 0, .addresses = {}};
  };
  const auto meet = [&](size_t source, size_t destination) {
    return BoxesOf(static_cast<int>(sources.size()), static_cast<int>(source),
                   static_cast<int>(destination)) != 0;
  };
  const auto give = [&](control::SessionId to, size_t number, bool gives,
                        std::vector<protocol::Member> peers) {
    const int slot = SlotOfSession(world, static_cast<uint16_t>(to));
    if (slot < 0 || world.processes[slot].session != to || world.processes[slot].life == Life::kDead) return;
    protocol::Plan plan{.epoch = epoch, .run = state.run, .table = {}, .table_file = {}, .peers = {}};
    plan.table = {static_cast<char>(sources.size()), static_cast<char>(number)};
    plan.peers = std::move(peers);
    plan.gives = gives;
    const uint32_t message = machines_.Add(protocol::ControllerMessage(std::move(plan)));
    world.processes[slot].down = machines_.Push(world.processes[slot].down, message);
  };
  for (size_t source = 0; source < sources.size(); ++source) {
    std::vector<protocol::Member> peers;
    for (size_t i = 0; i < destinations.size(); ++i)
      peers.push_back(member(destinations[i], meet(source, i)));
    give(sources[source], source, state.plan.from_engines, std::move(peers));
  }
  for (size_t number = 0; number < destinations.size(); ++number) {
    std::vector<protocol::Member> peers;
    for (size_t i = 0; i < sources.size(); ++i) peers.push_back(member(sources[i], meet(i, number)));
    give(destinations[number], number, false, std::move(peers));
  }
}

}  // namespace weightcast::model
