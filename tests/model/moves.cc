#include <algorithm>

#include "tests/model/model.h"

// What can happen in a world.
namespace weightcast::model {

using worker::Step;
using worker::UserCall;

bool Model::Ended(const World& world, int slot) const {
  const Process& p = world.processes[slot];
  return IsTrainer(slot) ? machines_.trainer(p.machine).ended : machines_.rank(p.machine).ended;
}

bool Model::InCall(const Process& p) const { return machines_.rank(p.machine).call != UserCall::kNone; }

/// An engine's user calls whenever it is not in a call and the session goes on; after its end it only leaves
/// a pause.
bool Model::MayCall(const World& world, int slot) const {
  const Process& p = world.processes[slot];
  if (p.life != Life::kRunning || world.run_done == 0) return false;
  if ((tired_ >> slot & 1) != 0 && p.paused == 0) return false;
  const auto& state = machines_.rank(p.machine);
  if (!state.registered || state.call != UserCall::kNone || p.registering != 0) return false;
  return !state.ended || p.user == UserAt::kMustAbort || (config_.phases && p.user != UserAt::kOutside);
}

bool Model::MayPublish(const World& world, int slot) const {
  const Process& p = world.processes[slot];
  if (p.life != Life::kRunning || world.run_done == 0 || p.busy != 0 || p.number >= config_.versions)
    return false;
  const auto& state = machines_.trainer(p.machine);
  return state.registered && !state.ended;
}

/// Whether this process is not there any more.
bool Model::Gone(const World& world, const protocol::Member& peer) const {
  const Process& p = world.processes[SlotOf(peer.name)];
  return p.life == Life::kDead || p.incarnation != peer.incarnation % 16;
}

/// The number of the first of a plan's peers that is gone; -1: all are there.
int Model::FirstGone(const World& world, uint32_t plan) const {
  if (plan == 0) return -1;
  const auto& peers = PlanOf(plan).peers;
  for (size_t i = 0; i < peers.size(); ++i)
    if (peers[i].incarnation != 0 && Gone(world, peers[i])) return static_cast<int>(i);
  return -1;
}

/// Of each source from which something is still to come, as long as it is there, or when it is dead.
void Model::SourceMoves(const World& world, int slot, Kind kind, bool dead, MoveList& moves) const {
  const Process& p = world.processes[slot];
  if (p.grants != GrantState::kOpen || machines_.rank(p.machine).step != Step::kWriting) return;
  const protocol::Plan& plan = PlanOf(p.plan);
  for (size_t i = 0; i < plan.peers.size(); ++i) {
    const uint8_t boxes = BoxesOf(plan.table[0], static_cast<int>(i), plan.table[1]) &
                          BoxesOfPart(machines_.rank(p.machine).part);
    const bool missing = (boxes & ~p.arrived) != 0;
    if (missing && Gone(world, plan.peers[i]) == dead)
      moves.push_back({kind, static_cast<uint8_t>(slot), static_cast<uint8_t>(i)});
  }
}

void Model::ProcessMoves(const World& world, int slot, MoveList& moves) const {
  const Process& p = world.processes[slot];
  const auto a = static_cast<uint8_t>(slot);
  const bool runs = p.life == Life::kRunning;
  if (runs && p.down != 0) moves.push_back({Kind::kDown, a});
  for (int controller = 0; controller < kMaxControllers; ++controller)
    SessionMoves(world, slot, controller, moves);
  HelloMoves(world, slot, moves);
  if (runs && p.link == Link::kBroken) moves.push_back({Kind::kResume, a});
  if (p.life == Life::kStopped) moves.push_back({Kind::kContinue, a});
  if (!runs) return;
  if (p.preparing != 0) {
    const int gone = FirstGone(world, p.plan);
    if (gone < 0) moves.push_back({Kind::kPrepare, a});
    // A rank waits for its sources to connect.
    if (gone >= 0 && IsTrainer(slot)) moves.push_back({Kind::kPrepareFail, a, static_cast<uint8_t>(gone)});
  }
  if (p.joining != 0) {
    const int gone = FirstGone(world, p.giving);
    moves.push_back({gone < 0 ? Kind::kJoin : Kind::kJoinFail, a, static_cast<uint8_t>(std::max(gone, 0))});
  }
  if (!AnyController(world) && p.link == Link::kNone && !Ended(world, slot))
    moves.push_back({Kind::kGiveUp, a});
  if (IsTrainer(slot)) {
    if (MayPublish(world, slot)) moves.push_back({Kind::kPublish, a});
    return;
  }
  if (p.grants == GrantState::kRevoking && (!config_.pull || OwnCopiesOver(world, slot)))
    moves.push_back({Kind::kFence, a});
  if (p.verifying != 0) moves.push_back({Kind::kVerify, a});
  if (p.copying != 0) moves.push_back({Kind::kCopy, a});
  if (MayCall(world, slot)) moves.push_back({Kind::kUser, a});
  if (InCall(p) && p.copying == 0) moves.push_back({Kind::kExpire, a});
  if (p.registering != 0)
    moves.push_back({machines_.rank(p.machine).lent ? Kind::kHurry : Kind::kRegistered, a});
  SourceMoves(world, slot, Kind::kSourceLost, /*dead=*/true, moves);
}

void Model::WriteMoves(const World& world, int write, MoveList& moves) const {
  const Write& w = world.writes[write];
  if (w.job == Job::kNone) return;
  const auto a = static_cast<uint8_t>(write);
  const Process& target = world.processes[w.target];
  const Process& source = world.processes[w.source];
  if (config_.pull) PullMoves(world, write, moves);
  if (!config_.pull && w.wire != Wire::kOff && w.landed < 2) {
    if (config_.halves && w.landed == 0) moves.push_back({Kind::kHalf, a});
    if ((!config_.halves || w.landed == 1) && target.life == Life::kRunning)
      moves.push_back({Kind::kLand, a});
  }
  if (!config_.pull && w.wire != Wire::kOff && w.landed == 2) {
    const auto& memory = config_.landing == protocol::Landing::kInPlace ? target.live : target.spare;
    const auto bytes = BytesOf(world, write);
    bool other = false;
    for (int box = 0; box < kBoxes; ++box)
      other = other || ((w.boxes >> box & 1) != 0 && memory[box] != bytes[box]);
    if (other) moves.push_back({Kind::kLate, a});
    if (world.budgets.repeats != 0) moves.push_back({Kind::kRepeat, a});
  }
  if (source.life != Life::kRunning) return;
  if (w.job == Job::kSending) {
    if (w.landed == 2) moves.push_back({Kind::kSendEnd, a});
    const bool closed = w.landed < 2 && (w.wire == Wire::kOff || target.grants != GrantState::kOpen);
    if (closed) moves.push_back({Kind::kSendFail, a});
    if (!closed && w.landed < 2 && world.budgets.paths != 0) moves.push_back({Kind::kPath, a});
    // Also when all has landed.
    if (IsTrainer(w.source) && world.budgets.failures != 0) moves.push_back({Kind::kSourceFails, a});
  }
  if (w.job == Job::kEnding) moves.push_back({Kind::kSendFence, a});
}

void Model::AdverseProcessMoves(const World& world, int slot, MoveList& moves) const {
  const Budgets& may = world.budgets;
  const Process& p = world.processes[slot];
  const auto a = static_cast<uint8_t>(slot);
  if (may.kills != 0 && p.life != Life::kDead) moves.push_back({Kind::kKill, a});
  const bool noticed = std::ranges::all_of(p.seats, [](const Seat& seat) { return seat.session == 0; });
  if (may.restarts != 0 && p.life == Life::kDead && noticed) moves.push_back({Kind::kRestart, a});
  if (may.stragglers != 0) {
    const bool room =
        std::find(world.stragglers.begin(), world.stragglers.end(), 0) != world.stragglers.end();
    const bool runs = p.life == Life::kRunning;
    if (room && runs && p.down != 0 && machines_.message(machines_.Front(p.down)).straggles)
      moves.push_back({Kind::kKeepDown, a});
    const uint32_t up = p.seats[p.at].up;
    if (room && p.link == Link::kLinked && up != 0 && machines_.message(machines_.Front(up)).straggles)
      moves.push_back({Kind::kKeepUp, a, p.at});
  }
  if (p.life != Life::kRunning) return;
  if (may.stragglers != 0 && !Follows(p, p.at) && p.down != 0 &&
      machines_.message(machines_.Front(p.down)).straggles)
    moves.push_back({Kind::kLeave, a});
  if (may.stops != 0) moves.push_back({Kind::kStop, a});
  if (may.breaks != 0 && p.link == Link::kLinked) moves.push_back({Kind::kBreak, a});
  if (may.astray != 0 && p.link != Link::kHello && p.link != Link::kEnded) {
    for (uint8_t controller = 0; controller < kMaxControllers; ++controller) {
      const bool other = p.link == Link::kNone || controller != p.at;
      if (other && world.controllers[controller].lives != 0) moves.push_back({Kind::kAstray, a, controller});
    }
  }
  if (IsTrainer(slot)) {
    const auto& publications = machines_.trainer(p.machine).publications;
    if (may.cancels != 0 && !publications.empty()) moves.push_back({Kind::kCancel, a});
    return;
  }
  const auto& state = machines_.rank(p.machine);
  const bool held = p.grants == GrantState::kRevoking && state.step == Step::kAborting;
  if (may.stops != 0 && held && config_.landing == protocol::Landing::kShadow && !config_.loader)
    moves.push_back({Kind::kSetAside, a});
  if (state.call != UserCall::kNone && p.copying == 0) {
    if (may.expiries != 0) moves.push_back({Kind::kEarlyExpire, a});
    if (may.interrupts != 0) moves.push_back({Kind::kInterrupt, a});
  }
  const bool idle = state.call == UserCall::kNone && state.registered && !state.ended && p.registering == 0;
  if (may.gives_up != 0 && idle && p.paused != 0) moves.push_back({Kind::kUserAbort, a});
  if (may.registers != 0 && idle && p.user == UserAt::kOutside && p.paused == 0 && world.run_done != 0) {
    moves.push_back({Kind::kRegister, a, 0});
    moves.push_back({Kind::kRegister, a, 1});
  }
  if (may.refusals != 0 && p.copying != 0 && config_.loader) moves.push_back({Kind::kRefuse, a});
  if (may.paths != 0) {
    if (p.verifying != 0) moves.push_back({Kind::kCorrupt, a});
    SourceMoves(world, slot, Kind::kRankPath, /*dead=*/false, moves);
  }
}

/// What was left behind waits for the next controller's session; a copy may come at any time.
bool Model::MayCome(const World& world, uint32_t straggler) const {
  if ((straggler & kStragglerLeft) == 0) return true;
  const Process& p = world.processes[StragglerOf(straggler)];
  const auto& term =
      IsTrainer(StragglerOf(straggler)) ? machines_.trainer(p.machine).term : machines_.rank(p.machine).term;
  return machines_.update(machines_.message(straggler & kStragglerMessage).update).term < term;
}

void Model::AdverseMoves(const World& world, MoveList& moves) const {
  const Budgets& may = world.budgets;
  for (int slot = 0; slot < processes(); ++slot) AdverseProcessMoves(world, slot, moves);
  for (uint8_t controller = 0; controller < kMaxControllers; ++controller) {
    if (world.controllers[controller].lives == 0) continue;
    if (may.controller != 0) moves.push_back({Kind::kKillController, 0, controller});
    if (may.timeouts != 0) TimerMoves(world, controller, Kind::kEarlyTimer, moves);
  }
  if (may.rivals != 0 && world.controllers[1].lives == 0) StartMoves(world, 1, Kind::kRival, moves);
  for (uint8_t i = 0; i < kMaxStragglers; ++i)
    if (world.stragglers[i] != 0 && MayCome(world, world.stragglers[i]))
      moves.push_back({Kind::kStraggle, i});
  if (config_.search != Search::kDepartures || may.holds == 0) return;
  uint32_t busy = 0;
  for (const Move move : moves)
    if (!IsAdverse(move.kind) && !IsTime(move.kind)) busy |= 1U << ChannelOf(world, move);
  for (uint8_t channel = 0; channel < 20; ++channel)
    if (((busy & ~world.held) >> channel & 1) != 0) moves.push_back({Kind::kHold, channel});
}

void Model::TimerMoves(const World& world, uint8_t controller, Kind kind, MoveList& moves) const {
  for (uint8_t timer = 1; timer < kTimers; ++timer)
    if ((world.controllers[controller].timers >> timer & 1) != 0) moves.push_back({kind, timer, controller});
}

void Model::Moves(const World& world, MoveList& moves) const {
  moves.clear();
  if (world.controllers[0].lives == 0 && !without_controller_)
    StartMoves(world, 0, Kind::kStartController, moves);
  for (uint8_t controller = 0; controller < kMaxControllers; ++controller)
    if (world.controllers[controller].planning != 0) moves.push_back({Kind::kPlanned, 0, controller});
  for (int slot = 0; slot < processes(); ++slot) ProcessMoves(world, slot, moves);
  for (int write = 0; write < kMaxWrites; ++write) WriteMoves(world, write, moves);
  for (uint8_t controller = 0; controller < kMaxControllers; ++controller)
    if ((world.controllers[controller].timers & 1) != 0) moves.push_back({Kind::kTimer, 0, controller});
  AdverseMoves(world, moves);
  // Time passes where nothing else can happen; as a surprise it is in a budget.
  const auto waits = [](Move move) { return !IsAdverse(move.kind) && !IsTime(move.kind); };
  const bool quiet = std::none_of(moves.begin(), moves.end(), waits);
  if (!quiet) std::erase_if(moves, [](Move move) { return move.kind == Kind::kExpire; });
  if (!quiet) return;
  for (uint8_t controller = 0; controller < kMaxControllers; ++controller)
    TimerMoves(world, controller, Kind::kTimer, moves);
}

/// What kHold holds up together.
int Model::ChannelOf(const World& world, Move move) const {
  switch (move.kind) {
    case Kind::kDown:
      return move.a;
    case Kind::kUp:
    case Kind::kHello:
      return 6 + move.a;
    case Kind::kPlanned:
    case Kind::kStartController:
      return 18;
    case Kind::kPull:
    case Kind::kPulled:
      return 12 + world.writes[move.a].target;
    case Kind::kHalf:
    case Kind::kLand:
      return 12 + (config_.pull ? world.writes[move.a].target : world.writes[move.a].source);
    case Kind::kLate:
    case Kind::kSendEnd:
    case Kind::kSendFail:
    case Kind::kSendFence:
      return 12 + world.writes[move.a].source;
    default:
      return 12 + move.a;
  }
}

std::optional<Move> Model::Next(const World& world, const MoveList& moves, bool to_the_end) const {
  const Move* best = nullptr;
  for (const Move& move : moves) {
    const bool last = move.kind == Kind::kExpire || move.kind == Kind::kGiveUp ||
                      (move.kind == Kind::kTimer && move.a >= kFirstJoinTimer);
    if (IsAdverse(move.kind) || (last && !to_the_end)) continue;
    const bool held = !IsTime(move.kind) && (world.held >> ChannelOf(world, move) & 1) != 0;
    if (held || (best != nullptr && best->kind <= move.kind)) continue;
    best = &move;
  }
  if (world.held != 0 && (best == nullptr || IsTime(best->kind))) return Move{Kind::kRelease};
  return best == nullptr ? std::nullopt : std::optional(*best);
}

}  // namespace weightcast::model
