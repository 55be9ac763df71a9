#include <algorithm>

#include "control/terms.h"
#include "tests/model/model.h"

// Controllers: their terms, what they are fed with, and what they want done.
namespace weightcast::model {
namespace {

/// Ids of terms are drawn on both sides of it.
constexpr uint8_t kMiddleId = 128;
constexpr uint8_t kMostIds = 120;

}  // namespace

/// Of a session that the controller knows, also when its process has died or is elsewhere.
int Model::SlotOfSession(const World& world, int controller, uint16_t session) const {
  for (int slot = 0; slot < processes(); ++slot) {
    const Seat& seat = world.processes[slot].seats[controller];
    if (seat.session == session || seat.stale == session) return slot;
  }
  return -1;
}

/// All that it knew is gone, and every stream to it.
void Model::KillController(World& world, int controller) {
  Forget(world, controller);
  for (int slot = 0; slot < processes(); ++slot) {
    Process& p = world.processes[slot];
    if (p.at != controller || p.link != Link::kHello) continue;
    p.hello = 0;
    p.link = Link::kNone;
  }
}

/// Every session is over. Who has only said Hello does not notice.
void Model::Forget(World& world, int controller) {
  Controller& c = world.controllers[controller];
  c = {};
  c.machine = machines_.NewController();
  for (int slot = 0; slot < processes(); ++slot) {
    Process& p = world.processes[slot];
    p.seats[controller] = {};
    if (p.at == controller && p.link != Link::kEnded && p.link != Link::kHello) p.link = Link::kNone;
    for (uint32_t& straggler : world.stragglers)
      if ((straggler & kStragglerUp) != 0 && StragglerOf(straggler) == slot && p.at == controller)
        straggler = 0;
  }
}

void Model::StartController(World& world, int controller, bool low) {
  BeginTerm(world, controller, control::FirstTerm(0).number, low);
}

/// Its id is drawn: below or above all that have been drawn so far.
void Model::BeginTerm(World& world, int controller, uint64_t number, bool low) {
  Controller& c = world.controllers[controller];
  if (world.ids == kMostIds) return Fail("model", "more terms than the model has ids for");
  ++world.ids;
  c.lives = 1;
  c.term = static_cast<uint8_t>(number);
  c.id = static_cast<uint8_t>(low ? kMiddleId - world.ids : kMiddleId + world.ids);
}

/// The number of the term with which the controller goes on when it takes the Hello of this worker.
uint64_t Model::NumberFor(const World& world, int slot) const {
  const Process& p = world.processes[slot];
  const auto& hello =
      std::get<protocol::Hello>(std::get<protocol::WorkerMessage>(machines_.message(p.hello).value));
  const auto number = control::NumberAfter(TermOf(world.controllers[p.at]), hello.term);
  return number.ok() ? *number : 0;  // None goes so far.
}

/// Whether somebody may compare a term of this number with that of the controller.
bool Model::IsKnown(const World& world, int controller, uint64_t number) const {
  for (int other = 0; other < kMaxControllers; ++other) {
    const Controller& c = world.controllers[other];
    if (other != controller && c.lives != 0 && c.term == number) return true;
  }
  for (int slot = 0; slot < processes(); ++slot) {
    const Process& p = world.processes[slot];
    if (p.life == Life::kDead) continue;
    if (TermOf(p, IsTrainer(slot)).number == number) return true;
    if (p.link != Link::kHello) continue;
    const auto& hello =
        std::get<protocol::Hello>(std::get<protocol::WorkerMessage>(machines_.message(p.hello).value));
    if (hello.term.number == number) return true;
  }
  return false;
}

void Model::FeedController(World& world, int controller, Ctl kind, uint16_t session, uint32_t arg) {
  Controller& c = world.controllers[controller];
  const Taken taken = machines_.StepController(c.machine, TermOf(c), kind, session, arg);
  c.machine = taken.next;
  if (kind == Ctl::kSaid) Handle(world, controller, SlotOfSession(world, controller, session), arg);
  for (uint32_t i = 0; i < taken.count; ++i) Execute(world, controller, machines_.effect(taken.first + i));
}

void Model::Execute(World& world, int controller, const Effect& effect) {
  Controller& c = world.controllers[controller];
  switch (effect.what) {
    case Do::kSend:
    case Do::kRefuse: {
      const int slot = SlotOfSession(world, controller, effect.b);
      if (slot >= 0) {
        Process& p = world.processes[slot];
        Send(world, controller, slot, effect.c);
        if (Hears(p, controller, effect.b)) p.down = machines_.Push(p.down, effect.c);
      }
      if (effect.what == Do::kRefuse) EndSession(world, controller, effect.b, Link::kEnded);
      return;
    }
    case Do::kForget:
      return EndSession(world, controller, effect.b, Link::kNone);
    case Do::kMakePlan:
      c.planning = static_cast<uint8_t>(effect.c);
      return;
    case Do::kHandOut:
      return HandOut(world, controller, effect.c);
    case Do::kSetTimer:
      c.timers = static_cast<uint16_t>(c.timers | 1U << effect.a);
      return;
    case Do::kCancelTimer:
      return Disarm(c, effect.a);
    default:
      return;
  }
}

/// Each member learns its part: how many sources there are and its own number stand for the table.
void Model::HandOut(World& world, int controller, uint32_t epoch) {
  const auto& state = machines_.controller(world.controllers[controller].machine);
  const auto& sources = state.plan.sources;
  const auto& destinations = state.plan.destinations;
  const auto member = [&](control::SessionId session, bool meets) {
    const auto worker = std::find_if(state.roster.workers().begin(), state.roster.workers().end(),
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
    const auto session = static_cast<uint16_t>(to);
    const int slot = SlotOfSession(world, controller, session);
    if (slot < 0 || !Hears(world.processes[slot], controller, session)) return;
    protocol::Plan plan{.epoch = epoch, .run = state.runs.run, .table = {}, .table_file = {}, .peers = {}};
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
