#include "tests/model/model.h"

#include <algorithm>
#include <cstring>

#include "base/strings.h"

namespace weightcast::model {

Model::Model(const Config& config) : config_(config), machines_(config_) {}

World Model::Initial() {
  World world{};
  StartController(world, 0, /*low=*/false);
  const int here = processes() - (config_.late ? config_.ranks : 0);
  for (int slot = 0; slot < here; ++slot) Start(world, slot);
  MoveList moves;
  while (!config_.cold) {  // Until all are prepared.
    Moves(world, moves);
    const auto next = Next(world, moves, false);
    if (!next) break;
    Apply(world, *next);
  }
  world.run_done = 1;
  world.budgets = config_.budgets;
  return world;
}

void Model::Apply(World& world, Move move) {
  Take(world, move);
  // One order of what is under way, so that equal worlds are equal bytes.
  std::sort(world.writes.begin(), world.writes.end(), [](const Write& a, const Write& b) {
    const bool none_a = a.job == Job::kNone;
    const bool none_b = b.job == Job::kNone;
    return none_a != none_b ? none_b : std::memcmp(&a, &b, sizeof a) < 0;
  });
}

void Model::Take(World& world, Move move) {
  if (world.held != 0 && !IsAdverse(move.kind) && !IsTime(move.kind) && move.kind != Kind::kRelease)
    world.held &= ~(1U << ChannelOf(world, move));
  if (move.kind <= Kind::kStartController) return TakeMessage(world, move);
  if (move.kind <= Kind::kPublish) return TakeStep(world, move);
  if (move.kind <= Kind::kSourceLost) return TakeData(world, move);
  IsAdverse(move.kind) ? TakeAdverse(world, move) : TakeTime(world, move);
}

void Model::TakeMessage(World& world, Move move) {
  Process& p = world.processes[move.a % kMaxProcesses];
  const int slot = move.a;
  switch (move.kind) {
    case Kind::kRelease:
      world.held = 0;
      return;
    case Kind::kDown: {
      const uint32_t message = machines_.Front(p.down);
      p.down = machines_.Pop(p.down);
      CheckAsked(world, slot, message);
      return TakeDown(world, slot, message);
    }
    case Kind::kUp: {
      Seat& seat = p.seats[move.b];
      const uint32_t message = machines_.Front(seat.up);
      seat.up = machines_.Pop(seat.up);
      return FeedController(world, move.b, Ctl::kSaid, seat.session, message);
    }
    case Kind::kHello:
      return TakeHello(world, slot, move.b != 0);
    case Kind::kConnect:
      return Connect(world, slot, move.b);
    case Kind::kResume:
      p.link = Link::kLinked;
      return FeedController(world, p.at, Ctl::kResumed, p.seats[p.at].session, 0);
    case Kind::kPlanned:
      return Planned(world, move.b);
    default:
      return StartController(world, 0, move.b != 0);
  }
}

/// A worker's own steps.
void Model::TakeStep(World& world, Move move) {
  Process& p = world.processes[move.a];
  const int slot = move.a;
  const uint32_t peer = static_cast<uint32_t>(move.b) << 16;
  switch (move.kind) {
    case Kind::kPrepare:
      p.preparing = 0;
      return Dispatch(world, slot, In::kPlanReady, EpochOf(p.plan));
    case Kind::kPrepareFail:
      p.preparing = 0;
      return Dispatch(world, slot, In::kPlanFailed, EpochOf(p.plan) | peer);
    case Kind::kJoin:
      p.joining = 0;
      return FeedPeerSource(world, slot, In::kPlanReady, EpochOf(p.giving));
    case Kind::kJoinFail:
      p.joining = 0;
      return FeedPeerSource(world, slot, In::kPlanFailed, EpochOf(p.giving) | peer);
    case Kind::kFence:
      return Fence(world, slot);
    case Kind::kVerify:
      p.verifying = 0;
      return FeedRank(world, slot, In::kVerified, machines_.Add(machines_.rank(p.machine).update));
    case Kind::kCopy:
      p.copying = 0;
      p.live = p.spare;
      return FeedRank(world, slot, In::kCopied, machines_.Add(machines_.rank(p.machine).update));
    case Kind::kUser:
      return Call(world, slot);
    case Kind::kRegistered:
      return Register(world, slot);
    default:
      return Publish(world, slot);
  }
}

void Model::TakeData(World& world, Move move) {
  switch (move.kind) {
    case Kind::kHalf:
      return Land(world, move.a, true);
    case Kind::kPull:
      world.writes[move.a].wire = Wire::kPulling;
      return;
    case Kind::kLand:
      Land(world, move.a, false);
      return config_.pull ? void() : Signal(world, move.a);
    case Kind::kPulled:
      return EndPull(world, move.a);
    case Kind::kLate:
      return Land(world, move.a, false);
    case Kind::kSendEnd:
      return SendEnd(world, move.a);
    case Kind::kSendFail:
      return SendFail(world, move.a);
    case Kind::kSendFence:
      return SendFence(world, move.a);
    default:
      return FeedRank(world, move.a, In::kSourceLost,
                      world.processes[move.a].grant | static_cast<uint32_t>(move.b) << 16);
  }
}

void Model::TakeTime(World& world, Move move) {
  Process& p = world.processes[move.a % kMaxProcesses];
  Seat& seat = p.seats[move.b % kMaxControllers];
  switch (move.kind) {
    case Kind::kNotice:
      if (Follows(p, move.b)) p.link = Link::kNone;
      seat.stale = std::exchange(seat.session, uint16_t{0});
      seat.up = 0;
      return FeedController(world, move.b, Ctl::kBroken, seat.stale, 0);
    case Kind::kContinue:
      p.life = Life::kRunning;
      return;
    case Kind::kLease:
      return FeedController(world, move.b, Ctl::kGone, seat.stale != 0 ? seat.stale : seat.session, 0);
    case Kind::kTimer:
      Disarm(world.controllers[move.b], move.a);
      return FeedController(world, move.b, Ctl::kTimer, 0, move.a);
    case Kind::kHurry:
      return Register(world, move.a);
    case Kind::kGiveUp:
      return End(world, move.a);
    default:
      return FeedRank(world, move.a, In::kExpire, 0);
  }
}

void Model::TakeAdverse(World& world, Move move) {
  Budgets& may = world.budgets;
  Process& p = world.processes[move.a % kMaxProcesses];
  const int slot = move.a;
  switch (move.kind) {
    case Kind::kKill:
      --may.kills;
      return Kill(world, slot);
    case Kind::kRestart:
      --may.restarts;
      return Start(world, slot);
    case Kind::kStop:
      --may.stops;
      p.life = Life::kStopped;
      return;
    case Kind::kBreak:
      --may.breaks;
      p.link = Link::kBroken;
      return FeedController(world, p.at, Ctl::kBroken, p.seats[p.at].session, 0);
    case Kind::kKillController:
      --may.controller;
      return KillController(world, move.b);
    case Kind::kRival:
      --may.rivals;
      return StartController(world, 1, move.b != 0);
    case Kind::kAstray:
      --may.astray;
      return GoAstray(world, slot, move.b);
    case Kind::kEarlyTimer:
      --may.timeouts;
      return TakeTime(world, {Kind::kTimer, move.a, move.b});
    case Kind::kEarlyExpire:
      --may.expiries;
      return TakeTime(world, {Kind::kExpire, move.a});
    case Kind::kInterrupt:
      --may.interrupts;
      return FeedRank(world, slot, In::kExpire, 1);
    case Kind::kUserAbort:
      --may.gives_up;
      return CallFor(world, slot, In::kAbort, worker::UserCall::kAbort);
    case Kind::kCancel:
      --may.cancels;
      return FeedTrainer(world, slot, In::kCancel, p.number);
    case Kind::kRegister:
      --may.registers;
      return AskToRegister(world, slot, move.b != 0);
    case Kind::kRefuse:
      --may.refusals;
      p.copying = 0;
      return FeedRank(world, slot, In::kRefused, machines_.Add(machines_.rank(p.machine).update));
    case Kind::kSetAside:
      --may.stops;
      return SetAside(world, slot);
    case Kind::kPath:
      --may.paths;
      return SendFail(world, slot);
    case Kind::kSourceFails:
      --may.failures;
      return SendFail(world, slot, In::kSendBroken);
    case Kind::kRankPath:
      --may.paths;
      return TakeData(world, {Kind::kSourceLost, move.a, move.b});
    case Kind::kCorrupt:
      --may.paths;
      p.verifying = 0;
      return FeedRank(world, slot, In::kCorrupt, machines_.Add(machines_.rank(p.machine).update));
    case Kind::kRepeat:
      --may.repeats;
      return Signal(world, slot);
    case Kind::kHold:
      --may.holds;
      world.held |= 1U << move.a;
      return;
    default:
      return TakeStraggler(world, move);
  }
}

void Model::TakeStraggler(World& world, Move move) {
  Process& p = world.processes[move.a % kMaxProcesses];
  const uint32_t whose = static_cast<uint32_t>(move.a) << 24;
  switch (move.kind) {
    case Kind::kKeepDown:
      Keep(world, machines_.Front(p.down) | whose);
      return TakeMessage(world, {Kind::kDown, move.a});
    case Kind::kKeepUp:
      Keep(world, machines_.Front(p.seats[move.b].up) | whose | kStragglerUp);
      return TakeMessage(world, {Kind::kUp, move.a, move.b});
    case Kind::kLeave:
      Keep(world, machines_.Front(p.down) | whose | kStragglerLeft);
      p.down = machines_.Pop(p.down);
      return;
    default:
      break;
  }
  const uint32_t straggler = std::exchange(world.stragglers[move.a], 0);
  const int slot = StragglerOf(straggler);
  const uint32_t message = straggler & kStragglerMessage;
  const Process& to = world.processes[slot];
  if ((straggler & kStragglerUp) == 0) {
    if (to.life == Life::kRunning) TakeDown(world, slot, message);
  } else if (const uint16_t session = to.seats[to.at].session; session != 0) {
    FeedController(world, to.at, Ctl::kSaid, session, message);
  }
}

void Model::Keep(World& world, uint32_t straggler) {
  --world.budgets.stragglers;
  for (uint32_t& place : world.stragglers)
    if (place == 0) {
      place = straggler;
      return;
    }
}

const protocol::Plan& Model::PlanOf(uint32_t message) const {
  return std::get<protocol::Plan>(std::get<protocol::ControllerMessage>(machines_.message(message).value));
}
uint32_t Model::EpochOf(uint32_t plan) const { return PlanOf(plan).epoch; }

/// A plan is possible when its sources hold every box between them.
void Model::Planned(World& world, int controller) {
  Controller& c = world.controllers[controller];
  const uint8_t epoch = std::exchange(c.planning, uint8_t{0});
  const auto& plan = machines_.controller(c.machine).plan;
  const bool lacking = !plan.from_engines && !config_.replicas && plan.sources.size() < config_.trainers;
  FeedController(world, controller, lacking ? Ctl::kPlanFailed : Ctl::kPlanMade, 0, epoch);
}

}  // namespace weightcast::model
