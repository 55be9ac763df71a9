#include <algorithm>

#include "tests/model/model.h"

// Processes, and their sessions with controllers.
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
// --- Processes ------------------------------------------------------------------------------------------

void Model::Start(World& world, int slot) {
  Process& p = world.processes[slot];
  Process fresh{};
  fresh.seats = p.seats;  // What controllers know of the incarnation before.
  fresh.former = p.former;
  fresh.life = Life::kRunning;
  fresh.incarnation = static_cast<uint8_t>(p.incarnation + 1);
  fresh.machine = IsTrainer(slot) ? machines_.NewTrainer() : machines_.NewRank(NameOf(slot));
  fresh.peer_source = machines_.NewPeerSource();
  fresh.content = kGarbage;
  fresh.live.fill(kGarbage);
  fresh.spare.fill(kGarbage);
  p = fresh;
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
  dead.at = p.at;
  dead.seats = p.seats;
  dead.former = std::max(p.former, p.run);
  Seat& seat = dead.seats[p.at];
  if (p.link == Link::kLinked) {
    dead.link = Link::kLinked;
  } else if (p.link == Link::kBroken) {
    seat.stale = std::exchange(seat.session, uint16_t{0});
    seat.up = 0;
  }
  p = dead;
  for (uint32_t& straggler : world.stragglers)
    if (StragglerOf(straggler) == slot) straggler = 0;
}

// --- What a worker's client does --------------------------------------------------------------------------

/// The last that its client was welcomed to, whether or not its machine has received it.
protocol::Term Model::TermOf(const Process& p, bool trainer) const {
  protocol::Term term = trainer ? machines_.trainer(p.machine).term : machines_.rank(p.machine).term;
  for (const uint32_t message : machines_.queue(p.down)) {
    const auto& value = std::get<protocol::ControllerMessage>(machines_.message(message).value);
    if (const auto* welcome = std::get_if<protocol::Welcome>(&value)) term = std::max(term, welcome->term);
  }
  return term;
}

void Model::Connect(World& world, int slot, int controller) {
  Process& p = world.processes[slot];
  p.at = static_cast<uint8_t>(controller);
  protocol::Hello hello;
  hello.job = "default";
  hello.model = "m";
  hello.name = NameOf(slot);
  hello.world_size = IsTrainer(slot) ? config_.trainers : config_.ranks;
  hello.incarnation = IncarnationOf(slot, p.incarnation);
  hello.term = TermOf(p, IsTrainer(slot));
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
  if (!Follows(p, p.at)) return;
  if (machines_.message(message).registers) p.dropping = 0;
  Seat& seat = p.seats[p.at];
  if (p.dropping == 0) seat.up = machines_.Push(seat.up, message);
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
  Dispatch(world, slot, In::kEnded);
}

void Model::TakeDown(World& world, int slot, uint32_t message) {
  Process& p = world.processes[slot];
  const auto& value = std::get<protocol::ControllerMessage>(machines_.message(message).value);
  if (std::holds_alternative<protocol::Refused>(value)) {
    return End(world, slot);
  }
  if (const auto* welcome = std::get_if<protocol::Welcome>(&value);
      welcome != nullptr && welcome->term < TermOf(p, IsTrainer(slot))) {
    // The client gives the stream up and tries again.
    p.down = 0;
    if (p.link == Link::kLinked) p.link = Link::kNone;
    return;
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
    return Dispatch(world, slot, In::kPlan, message);
  }
  if (!IsTrainer(slot)) {
    // Before the rank's own machine: what a new session makes void is given no more.
    const bool given = std::holds_alternative<protocol::Welcome>(value) ||
                       std::holds_alternative<protocol::Stop>(value) ||
                       std::holds_alternative<protocol::Release>(value);
    if (given) FeedPeerSource(world, slot, In::kMessage, message);
    if (std::holds_alternative<protocol::Start>(value)) {
      const Content held = CodeOf(worker::VersionToLend(machines_.rank(p.machine)));
      return FeedPeerSource(world, slot, In::kGive, machines_.Add(message, held));
    }
  }
  Dispatch(world, slot, In::kMessage, message);
  if (!std::holds_alternative<protocol::Welcome>(value)) return;
  p.plan = 0;
  p.preparing = 0;
  // The user registers as soon as Connect has returned.
  const bool registered =
      IsTrainer(slot) ? machines_.trainer(p.machine).registered : machines_.rank(p.machine).registered;
  if (!registered) Dispatch(world, slot, In::kRegister, 0);
}

// --- Sessions -------------------------------------------------------------------------------------------

/// A new session: what the old one had not delivered is lost, in both directions. If the worker has followed
/// a term that is not older, the controller forgets everything and begins the next one.
void Model::TakeHello(World& world, int slot, bool low) {
  Process& p = world.processes[slot];
  const int controller = p.at;
  const uint64_t number = NumberFor(world, slot);
  const uint32_t hello = std::exchange(p.hello, 0);
  if (number != world.controllers[controller].term) {
    Forget(world, controller);
    BeginTerm(world, controller, number, low);
  }
  Seat& seat = p.seats[controller];
  if (seat.session != 0) seat.stale = seat.session;  // It has not noticed that the stream is broken.
  seat.session = ++world.controllers[controller].last_session;
  seat.up = 0;
  p.link = Link::kLinked;
  p.down = 0;
  p.dropping = 1;
  FeedController(world, controller, Ctl::kAttached, seat.session, hello);
}

/// The worker leaves for another controller. The one that it leaves notices later, if it has not yet.
void Model::GoAstray(World& world, int slot, int controller) {
  Process& p = world.processes[slot];
  Seat& seat = p.seats[p.at];
  if (p.link == Link::kBroken) {
    seat.stale = std::exchange(seat.session, uint16_t{0});
    seat.up = 0;
  }
  Connect(world, slot, controller);
}

void Model::EndSession(World& world, int controller, uint16_t session, Link link) {
  for (int slot = 0; slot < processes(); ++slot) {
    Process& p = world.processes[slot];
    Seat& seat = p.seats[controller];
    if (seat.stale == session || seat.session == session) seat.ledger = {};
    if (seat.stale == session) seat.stale = 0;
    if (seat.session != session) continue;
    if (Follows(p, controller)) p.link = p.life == Life::kDead ? Link::kNone : link;
    seat.session = 0;
    seat.up = 0;
    for (uint32_t& straggler : world.stragglers)
      if ((straggler & kStragglerUp) != 0 && StragglerOf(straggler) == slot) straggler = 0;
  }
}

}  // namespace weightcast::model
