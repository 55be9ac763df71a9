#include <algorithm>

#include "tests/model/model.h"

// Writes between GPUs: a source orders, and the target's own engine copies from the source's memory. What the
// source does meanwhile is found out after the copy (src/transport/shm/pull_checks.h).
namespace weightcast::model {

/// The second check, after the copy: the source has not let go before the last byte was read.
bool Model::SourceStayed(const Write& w) { return w.job != Job::kGone; }

/// A revoked grant is over when no copy under it runs, whatever its source does.
bool Model::OwnCopiesOver(const World& world, int slot) const {
  const Process& p = world.processes[slot];
  return std::none_of(world.writes.begin(), world.writes.end(), [&](const Write& w) {
    return w.wire == Wire::kPulling && w.target == slot && w.serial == p.grant_serial;
  });
}

void Model::PullMoves(const World& world, int write, MoveList& moves) const {
  const Write& w = world.writes[write];
  const Process& target = world.processes[w.target];
  const auto a = static_cast<uint8_t>(write);
  const bool runs = target.life == Life::kRunning;
  // The first check: nothing is begun from a source that has let go, and LetGo takes back what was ordered.
  if (w.wire == Wire::kOpen && w.landed == 0 && runs && target.grants == GrantState::kOpen)
    moves.push_back({Kind::kPull, a});
  // The engine goes on while its process is stopped.
  if (w.wire == Wire::kPulling) {
    if (config_.halves && w.landed == 0) moves.push_back({Kind::kHalf, a});
    if (!config_.halves || w.landed == 1) moves.push_back({Kind::kLand, a});
  }
  if (w.wire == Wire::kPulled && runs) moves.push_back({Kind::kPulled, a});
}

/// The copy is over and the target looks at it.
void Model::EndPull(World& world, int write) {
  Write& w = world.writes[write];
  const bool counts = SourceStayed(w);
  w.wire = Wire::kOff;
  w.landed = 2;
  if (counts) Signal(world, write);
  if (w.job == Job::kGone) w = Write{};
}

}  // namespace weightcast::model
