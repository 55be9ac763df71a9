#include "soak/repairs.h"

#include <algorithm>

#include "base/strings.h"

namespace weightcast::soak {
namespace {

constexpr double kRepairPatience = 20;
constexpr size_t kEngineB = kProcesses - 1;

bool AllServe(const Board& board, size_t first, size_t end, int64_t number) {
  return std::all_of(board.process.begin() + static_cast<ptrdiff_t>(first),
                     board.process.begin() + static_cast<ptrdiff_t>(end),
                     [&](const Board::Process& rank) { return rank.served >= number; });
}

std::string Wrong(const Cluster& cluster, const std::string& what) {
  return StrCat(what, "\n", cluster.Describe());
}

std::string Mixtures(Cluster& cluster) {
  for (size_t i = kFirstRank; i < kProcesses; ++i)
    if (cluster.board().process[i].mixtures != 0)
      return Wrong(cluster, StrCat(kPlaces[i].text, " served a mixture"));
  return {};
}

}  // namespace

std::string KillOneTrainer(Cluster& cluster, std::mt19937& random) {
  Board& board = cluster.board();
  const size_t victim = kFirstTrainer + random() % 2;
  const size_t other = 2 * kFirstTrainer + 1 - victim;
  // In the middle: some rank receives, none has everything.
  const int busy = 1 + static_cast<int>(random() % 3);
  int64_t number = 0;
  const auto halfway = [&] {
    number = board.publish;
    const auto ranks = board.process.begin() + kFirstRank;
    const auto receiving = std::count_if(ranks, board.process.end(), [](const Board::Process& rank) {
      return rank.stage == Stage::kUpdating;
    });
    return receiving >= busy && board.process[victim].stage == Stage::kSending &&
           board.process[other].stage == Stage::kSending && board.process[other].finished < number;
  };
  if (!cluster.WaitUntil(halfway, kRepairPatience))
    return Wrong(cluster, "no update to be caught in the middle");
  cluster.Kill(victim);
  if (!cluster.WaitUntil([&] { return board.process[other].finished >= number; }, kRepairPatience))
    return Wrong(cluster, StrCat("the update to version ", number, " does not end"));
  if (board.process[other].committed < number)
    return Wrong(cluster, StrCat("version ", number, " was not committed from the other trainer"));
  const int64_t next = board.publish + 1;
  if (!cluster.WaitUntil([&] { return AllServe(board, kFirstRank, kProcesses, next); }, kRepairPatience))
    return Wrong(cluster, StrCat("version ", next, " is not served by all"));
  return Mixtures(cluster);
}

std::string KillAllTrainers(Cluster& cluster) {
  Board& board = cluster.board();
  board.hold_b = true;
  if (!cluster.WaitUntil([&] { return board.b_is_held.load(); }, kRepairPatience))
    return Wrong(cluster, "engine b does not stand still");
  const int64_t number = board.publish + 1;
  if (!cluster.WaitUntil([&] { return AllServe(board, kFirstRank, kEngineB, number); }, kRepairPatience))
    return Wrong(cluster, StrCat("engine a is not served version ", number));
  cluster.Retire(kFirstTrainer);
  cluster.Retire(kFirstTrainer + 1);
  if (board.process[kEngineB].served >= number) return Wrong(cluster, "engine b was not held");
  board.hold_b = false;
  const bool served =
      cluster.WaitUntil([&] { return board.process[kEngineB].served >= number; }, kRepairPatience);
  if (!served) return Wrong(cluster, StrCat("engine b does not get version ", number, " from engine a"));
  cluster.Reinstate(kFirstTrainer);
  cluster.Reinstate(kFirstTrainer + 1);
  const int64_t next = board.publish + 1;
  if (!cluster.WaitUntil([&] { return AllServe(board, kFirstRank, kProcesses, next); }, kRepairPatience))
    return Wrong(cluster, StrCat("version ", next, " is not served by all"));
  return Mixtures(cluster);
}

}  // namespace weightcast::soak
