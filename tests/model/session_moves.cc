#include <algorithm>

#include "control/terms.h"
#include "tests/model/model.h"

// What can happen between workers and controllers.
namespace weightcast::model {

bool Model::AnyController(const World& world) const {
  return std::ranges::any_of(world.controllers, [](const Controller& c) { return c.lives != 0; });
}

/// The id of its term is below those of all others, or above: where nobody can tell, one stands for both.
void Model::StartMoves(const World& world, int controller, Kind kind, MoveList& moves) const {
  const uint64_t number = control::FirstTerm(0).number;
  if (IsKnown(world, controller, number)) moves.push_back({kind, 0, 1});
  moves.push_back({kind});
}

/// Of a session that the controller knows and its worker does not: it has died, or is elsewhere.
bool Model::IsLeft(const Process& p, int controller) {
  return p.seats[controller].session != 0 && (p.life == Life::kDead || !Follows(p, controller));
}

/// A worker and one of the controllers.
void Model::SessionMoves(const World& world, int slot, int controller, MoveList& moves) const {
  const Process& p = world.processes[slot];
  const Seat& seat = p.seats[controller];
  const auto a = static_cast<uint8_t>(slot);
  const auto b = static_cast<uint8_t>(controller);
  const bool linked = Follows(p, controller) && p.link == Link::kLinked;
  const bool left = IsLeft(p, controller);
  if ((linked || left) && seat.up != 0) moves.push_back({Kind::kUp, a, b});
  if (left) moves.push_back({Kind::kNotice, a, b});
  const bool silent =
      (Follows(p, controller) && p.link == Link::kBroken) || (linked && p.life == Life::kStopped);
  if (seat.stale != 0 || silent) moves.push_back({Kind::kLease, a, b});
}

/// Where a worker looks for a controller: at the second one only when the first does not run.
void Model::HelloMoves(const World& world, int slot, MoveList& moves) const {
  const Process& p = world.processes[slot];
  const auto a = static_cast<uint8_t>(slot);
  if (p.link == Link::kHello) {
    const uint64_t number = NumberFor(world, slot);
    moves.push_back({Kind::kHello, a});
    if (number != world.controllers[p.at].term && IsKnown(world, p.at, number))
      moves.push_back({Kind::kHello, a, 1});
  }
  if (p.life == Life::kRunning && p.link == Link::kNone && AnyController(world))
    moves.push_back({Kind::kConnect, a, world.controllers[0].lives != 0 ? uint8_t{0} : uint8_t{1}});
}

}  // namespace weightcast::model
