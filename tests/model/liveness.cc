#include <algorithm>
#include <array>

#include "base/strings.h"
#include "tests/model/model.h"

// What must come true once the adversary has stopped.
namespace weightcast::model {

using protocol::Landing;
using worker::UserCall;

namespace {

/// A user whose calls have timed out so often calls no more.
constexpr int kPatience = 2;

}  // namespace

/// Whoever runs two controllers ends the second one. Users whose calls have timed out often enough make no
/// more of them.
void Model::CheckLiveness(World world, bool controller_returns, MoveList* trace) {
  EndFaults(world);
  without_controller_ = !controller_returns;
  std::array<int, kMaxProcesses> expired{};
  RunToTheEnd(world, expired, trace);
  without_controller_ = false;
  tired_ = 0;
}

void Model::EndFaults(World& world) {
  world.budgets = Budgets{};
  world.stragglers = {};
  if (world.controllers[1].lives != 0) KillController(world, 1);
}

void Model::RunToTheEnd(World& world, std::array<int, kMaxProcesses>& expired, MoveList* trace) {
  MoveList moves;
  for (uint32_t step = 0; step < config_.live_steps; ++step) {
    Moves(world, moves);
    const auto next = Next(world, moves, /*to_the_end=*/true);
    if (!next) return CheckEnd(world);
    if (trace != nullptr) trace->push_back(*next);
    const bool expires = next->kind == Kind::kExpire;
    const uint32_t before = expires ? world.processes[next->a].machine : 0;
    Apply(world, *next);
    if (violation_) return;
    if (!expires) continue;
    if (++expired[next->a] == kPatience) tired_ |= 1U << next->a;
    // Its end is asked for again and again; something else must bring it about.
    if (world.processes[next->a].machine == before && InCall(world.processes[next->a]))
      return Fail("liveness", StrCat("a call of ", protocol::ToString(NameOf(next->a)), " never ends"));
  }
  Fail("liveness", StrCat("no end within ", config_.live_steps, " steps of a fair schedule"));
}

/// Whether the controller has an engine to update; a publication may wait for the first one.
bool Model::AnyEngine(const World& world) const {
  const auto& groups = machines_.controller(world.controllers[0].machine).roster.groups();
  return std::any_of(groups.begin() + 1, groups.end(), [](const control::Group& group) {
    return group.world_size != 0 && group.members == group.world_size;
  });
}

/// Whether an engine is there that serves a version and may give it.
bool Model::AnyGives(const World& world) const {
  for (int engine = 0; engine < config_.engines && world.controllers[0].lives != 0; ++engine) {
    bool gives = true;
    for (int rank = 0; rank < config_.ranks; ++rank) {
      const int slot = config_.trainers + engine * config_.ranks + rank;
      const Process& p = world.processes[slot];
      gives = gives && p.life == Life::kRunning && !Ended(world, slot);
      if (!gives) break;
      const auto& state = machines_.rank(p.machine);
      gives = state.served.number >= 0 && worker::VersionToLend(state) == state.served;
    }
    if (gives) return true;
  }
  return false;
}

/// Nothing can land and nobody reads any more: each call has ended, each Abort has been answered, and no
/// memory stays in quarantine.
void Model::CheckIdle(const World& world, int slot) {
  const Process& p = world.processes[slot];
  if (p.life != Life::kRunning) return;
  const std::string who = protocol::ToString(NameOf(slot));
  if (InCall(p)) Fail("liveness", StrCat("a call of ", who, " never ends"));
  for (const uint16_t update : p.seats[0].ledger.owed)
    if (update != 0)
      Fail("liveness", StrCat(who, " never answers Abort of ", protocol::ToString(machines_.update(update))));
  if (machines_.rank(p.machine).step == worker::Step::kAborting)
    Fail("liveness", StrCat(who, " never ends the quarantine of its memory"));
}

void Model::CheckEnd(const World& world) {
  const auto& controller = machines_.controller(world.controllers[0].machine);
  int64_t offered = -1;
  bool filled = world.controllers[0].lives != 0 && config_.hold;
  for (const control::Worker& worker : controller.roster.workers()) {
    if (worker.group != control::kTrainers) continue;
    filled = filled && worker.hold && worker.offered >= 0 && (offered < 0 || worker.offered == offered);
    offered = worker.offered;
  }
  for (int slot = 0; slot < config_.trainers; ++slot) {
    const Process& p = world.processes[slot];
    filled = filled && p.life == Life::kRunning && !Ended(world, slot);
    if (p.life != Life::kRunning) continue;
    for (const auto& publication : machines_.trainer(p.machine).publications) {
      const std::string whose =
          StrCat(" of ", protocol::ToString(NameOf(slot)), " for v", publication.number, " never ends");
      if (publication.release && !publication.free) Fail("liveness", "WaitSources" + whose);
      if (!publication.done && AnyEngine(world)) Fail("liveness", "Wait" + whose);
    }
  }
  for (int slot = config_.trainers; slot < processes(); ++slot) CheckIdle(world, slot);
  filled = filled || AnyGives(world);
  if (config_.landing != Landing::kShadow || !filled) return;
  for (int engine = 0; engine < config_.engines; ++engine) {
    bool whole = true;
    bool serves = true;
    const std::string name(1, static_cast<char>('A' + engine));
    // After three failures an engine has to join again, or to wait for another version.
    const bool given_up = std::any_of(
        controller.roster.groups().begin(), controller.roster.groups().end(), [&](const auto& group) {
          const control::EngineFailures& failures = controller.opening.failures.Of(group.id);
          return group.name == name && (failures.tries >= 3 || failures.at_fault);
        });
    for (int rank = 0; rank < config_.ranks; ++rank) {
      const int slot = config_.trainers + engine * config_.ranks + rank;
      const Process& p = world.processes[slot];
      whole = whole && p.life == Life::kRunning && !Ended(world, slot);
      serves = serves && p.life == Life::kRunning && machines_.rank(p.machine).served.number >= 0;
    }
    if (whole && !serves && !given_up)
      Fail("liveness", StrCat("engine ", name, " does not serve in the end"));
  }
}

}  // namespace weightcast::model
